"""What a job reads: the geometry of its clips, and the streams computed from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from essp_common.job.fields import Label, Params, Section
from essp_common.validation import wrong


class CodecSpec(Section):
    """How frames are stored in the cache."""

    name: Literal["raw", "jpeg", "zstd"] = "raw"
    """`raw`: uncompressed, no CPU cost. `jpeg`: 4 to 9 times smaller, lossy. `zstd`: lossless, for flow, not for
    photos."""
    quality: int = Field(0, ge=0, le=100)
    """JPEG quality from 1 to 100 (0 means 95); for zstd, the level (0 means 1)."""
    subsampling: Literal["444", "422", "420"] = "444"
    """JPEG chroma subsampling."""


class ResizeSpec(Section):
    """Size of the decoded frames. Scaling and colour conversion happen in one pass."""

    mode: Literal["none", "short_side", "exact", "crop"] = "crop"
    """`short_side`: scale until the short side is `height`. `exact`: scale to `height` x `width` and ignore the aspect
    ratio. `crop`: scale until the frame covers `height` x `width`, then crop the centre."""
    height: int = Field(256, ge=8, le=4320)
    """Pixels; for `short_side`, the length of the short side."""
    width: int = Field(256, ge=8, le=7680)
    """Pixels; not used by `short_side`."""
    interpolation: Literal["fast_bilinear", "bilinear", "bicubic", "area", "lanczos", "nearest"] = "bilinear"
    """A method of libswscale."""


class ViewSpec(Section):
    """How the clips of a further view differ from those of the first one."""

    frames: int | None = Field(None, ge=1, le=512)
    """Frames decoded for each clip (default: as `clip.frames`)."""
    stride: int | None = Field(None, ge=1, le=64)
    """Distance between consecutive frames, counted in frames of the first view (default: as `clip.stride`)."""
    resize: ResizeSpec | None = None
    """Size of the frames (default: as `clip.resize`)."""
    pixels: Literal["rgb", "yuv420", "gray"] | None = None
    """Pixel format (default: as `clip.pixels`)."""


class ClipSpec(Section):
    """The geometry of a clip."""

    frames: int = Field(11, ge=1, le=512)
    """Frames decoded for each clip. A flow stack of length L needs L + 1. For records: 1."""
    stride: int = Field(1, ge=1, le=64)
    """Distance in frames between consecutive frames of the clip."""
    snippets: int = Field(1, ge=1, le=64)
    """Number of pieces into which a clip's frames are split. The video is divided into this many equal parts, and each
    part contributes one snippet of `frames / snippets` frames. A feature is computed for each snippet separately, and
    the scores of a clip's snippets are averaged (TSN). 1: a clip is one piece. See docs/networks.md."""
    part: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]] = (0.0, 1.0)
    """The part of each video from which clips are drawn, as fractions of its length: `[0.25, 0.75]` is its middle half.
    Useful if videos of all classes begin and end alike."""
    resize: ResizeSpec = ResizeSpec()
    """Size of the frames."""
    pixels: Literal["rgb", "yuv420", "gray"] = "rgb"
    """`rgb`: converted by libswscale. `yuv420`: frames stay YUV 4:2:0, as in the video, until a trainer uses them: half
    the bytes, and a third of the scaling cost; `rgb` streams still get RGB. `gray`: luma only, a third of the bytes,
    for `flow` and other features that need no colours. See docs/pixels.md."""
    codec: CodecSpec = CodecSpec()
    """How the clip's frames are stored in the cache."""
    motion: bool = False
    """Also read the motion vectors that the codec has stored, for streams of `motion_vectors`. H.264, MPEG-4, MPEG-2
    and older codecs have them."""
    views: dict[Label, ViewSpec] = Field({}, max_length=32)
    """Views of the catalog's events to decode together, such as cameras; a clip of the first one has the settings
    above, and the others may differ from it, as in `{top: {}, wrist: {resize: {height: 128, width: 128}}}`. All of them
    end at the same moment: each of their frames is the last one shown when a frame of the first view appears, `stride`
    frames apart. A stream says which view it is computed from. Empty: the catalog has one view. See
    [events](catalog.md#several-views-of-one-event)."""

    @property
    def further(self) -> dict[str, ClipSpec]:
        """The clips of each view but the first."""
        return {name: self.of(name) for name in list(self.views)[1:]}

    def of(self, view: str) -> ClipSpec:
        """The clips of one view; with an empty name, those of the first one."""
        given = self.views[view].model_dump(exclude_none=True) if view else {}
        own = {name: getattr(self.views[view], name) for name in given}
        return self.model_copy(update={**own, "views": {}})

    @property
    def reach(self) -> int:
        """Frames of the first view that a clip takes: from the first moment of any view to the last one."""
        return max([self.span, *(view.span for view in self.further.values())])

    @property
    def snippet_frames(self) -> int:
        """Frames of one snippet."""
        return self.frames // self.snippets

    @property
    def span(self) -> int:
        """Frames of the video from the first to the last frame of a snippet."""
        return (self.snippet_frames - 1) * self.stride + 1

    @model_validator(mode="after")
    def _has_a_part(self) -> ClipSpec:
        begin, end = self.part
        if begin >= end:
            raise wrong(
                f"{begin:g} to {end:g} is nothing; give two shares, the smaller one first", field="part", code="range"
            )
        return self

    @model_validator(mode="after")
    def _has_whole_snippets(self) -> ClipSpec:
        if self.frames % self.snippets:
            raise wrong(
                f"{self.frames} cannot be divided into {self.snippets} snippets; use a multiple of {self.snippets}",
                field="frames",
                code="conflict",
            )
        return self

    @model_validator(mode="after")
    def _fits_its_views(self) -> ClipSpec:
        if not self.views:
            return self
        first = next(iter(self.views))
        if own := self.views[first].model_dump(exclude_none=True):
            raise wrong(
                f"clips of the first view have the settings of clip itself; write clip.{next(iter(own))} instead",
                field=f"views.{first}.{next(iter(own))}",
                code="conflict",
            )
        if self.snippets > 1:
            raise wrong("clips of several views are one piece; use 1", field="snippets", code="conflict")
        if self.motion:
            raise wrong("the motion of several views is not read; use false, or one view", field="motion")
        for name in self.views:
            if not name:
                raise wrong("a view needs a name", field="views", code="invalid")
            if (mode := self.of(name).resize.mode) not in ("crop", "exact"):
                raise wrong(
                    f"{mode} makes frames of different sizes; with views, use crop or exact",
                    field="resize.mode" if self.views[name].resize is None else f"views.{name}.resize.mode",
                    code="conflict",
                )
            _check_planes(self.of(name), f"views.{name}.")
        return self

    @model_validator(mode="after")
    def _fits_into_planes(self) -> ClipSpec:
        _check_planes(self)
        return self


def _check_planes(clip: ClipSpec, place: str = "") -> None:
    """Raises for a size or codec that YUV 4:2:0 does not have. `place`: of its settings within those of clip."""
    if clip.pixels != "yuv420":
        return
    if clip.codec.name == "jpeg":
        raise wrong("jpeg holds rgb or gray, not pixels: yuv420; use raw or zstd", field="codec.name", code="conflict")
    sides = {"short_side": ("height",), "exact": ("height", "width"), "crop": ("height", "width")}
    for side in sides.get(clip.resize.mode, ()):
        if (length := getattr(clip.resize, side)) % 2:
            raise wrong(
                f"{length} is odd, and pixels: yuv420 has one colour for 2 x 2 pixels; use {length - 1} or "
                f"{length + 1}",
                field=f"{place}resize.{side}",
                code="conflict",
            )


class StreamSpec(Section):
    """A feature as the input of models."""

    feature: Label = "rgb"
    """An extractor's name (`essp extractor ls`)."""
    view: Label = ""
    """The view of `clip.views` that it is computed from. A stream without one that `consumers` take has all of them."""
    params: Params = Field({})
    """The extractor's parameters (`essp extractor describe NAME`). `rgb`: `frames`, the number of the clip's frames to
    use. All others: `every`, to use every n-th frame of the clip, and `short_side`, to scale frames down first. `flow`
    and its variants: `bound`, the largest displacement kept, as a fraction of the frame's short side (0.08: 20 px of
    256, as in the two-stream papers). As a fraction, it means the same motion of the scene at any frame size. It is not
    measured on the videos, because a model would then not fit another catalog. The report says how much is clipped."""
    codec: CodecSpec = CodecSpec()
    """How the feature is stored in the cache. `rgb` uses the codec of the clip."""

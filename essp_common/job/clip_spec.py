"""What a job reads: the geometry of its clips, and the streams computed from them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

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

    mode: Literal["none", "short_side", "exact", "crop", "bounded"] = "crop"
    """`short_side`: scale until the short side is `height`. `exact`: scale to `height` x `width` and ignore the aspect
    ratio. `crop`: scale until the frame covers `height` x `width`, then crop the centre. `bounded`: a size for each
    video, with sides that are multiples of `multiple_of`, about as many pixels as `min_pixels` and `max_pixels` allow,
    and its aspect ratio as far as these multiples allow: the sizes of Qwen-VL. See docs/vlm.md."""
    height: int = Field(256, ge=8, le=4320)
    """Pixels; for `short_side`, the length of the short side."""
    width: int = Field(256, ge=8, le=7680)
    """Pixels; not used by `short_side`."""
    min_pixels: int | None = Field(None, ge=1, le=2**40)
    """`bounded`: smaller frames are enlarged to this many pixels."""
    max_pixels: int | None = Field(None, ge=1, le=2**40)
    """`bounded`: larger frames are reduced to at most this many pixels."""
    multiple_of: int = Field(28, ge=1, le=1024)
    """`bounded`: the sides are multiples of it: the side of a patch times the patches that are merged, 14 x 2 for
    Qwen2.5-VL."""
    temporal_multiple: int = Field(2, ge=1, le=64)
    """`bounded`: the number of frames of a clip is a multiple of it, since the network puts these into one patch."""
    pixels_of: Literal["frame", "clip"] = "frame"
    """`bounded`: whether `min_pixels` and `max_pixels` are of each frame, as for Qwen2-VL and Qwen2.5-VL, or of all
    frames of a clip together, as for Qwen3-VL."""
    interpolation: Literal["fast_bilinear", "bilinear", "bicubic", "area", "lanczos", "nearest"] = "bilinear"
    """A method of libswscale."""

    @model_validator(mode="after")
    def _is_bounded(self) -> ResizeSpec:
        low, high = self.min_pixels, self.max_pixels
        if self.mode != "bounded":
            for name in ("min_pixels", "max_pixels"):
                if getattr(self, name) is not None:
                    raise wrong(f"only with mode: bounded, and mode is {self.mode}", field=name)
            return self
        if low is None and high is None:
            raise wrong("required with mode: bounded, unless min_pixels is given", field="max_pixels", code="missing")
        if low is not None and high is not None and low > high:
            raise wrong(f"{low} is more than max_pixels ({high})", field="min_pixels", code="range")
        if high is not None and high < self.multiple_of**2:
            raise wrong(
                f"{high} is less than the smallest frame, {self.multiple_of} x {self.multiple_of}; use "
                f"{self.multiple_of**2} or more",
                field="max_pixels",
                code="range",
            )
        return self


MOST_FRAMES = 512
"""Frames of a clip."""


class ViewSpec(Section):
    """How the clips of a further view differ from those of the first one."""

    frames: int | None = Field(None, ge=1, le=MOST_FRAMES)
    """Frames decoded for each clip (default: as `clip.frames`)."""
    stride: int | None = Field(None, ge=1, le=64)
    """Distance between consecutive frames, counted in frames of the first view (default: as `clip.stride`)."""
    fps: float | None = Field(None, ge=0.0001, le=1000)
    """Frames per second, if `clip` chooses frames by time (default: as there, as for the next two)."""
    every_s: float | None = Field(None, ge=0.001, le=86_400)
    """Seconds from one frame to the next."""
    seconds: float | None = Field(None, ge=0.001, le=86_400)
    """Length of the clip."""
    resize: ResizeSpec | None = None
    """Size of the frames (default: as `clip.resize`)."""
    pixels: Literal["rgb", "yuv420", "gray", "gray16"] | None = None
    """Pixel format (default: as `clip.pixels`)."""


class ClipSpec(Section):
    """The geometry of a clip."""

    frames: int = Field(11, ge=1, le=MOST_FRAMES)
    """Frames decoded for each clip. A flow stack of length L needs L + 1. For records: 1. Leave it out with
    `max_frames`, and with `fps` and `seconds` together, which give it."""
    stride: int = Field(1, ge=1, le=64)
    """Distance in frames between consecutive frames of the clip."""
    fps: float | None = Field(None, ge=0.0001, le=1000)
    """Choose frames by time instead of by `stride`: this many per second, in videos of any frame rate, also of a
    varying one. A clip begins when its first frame appears, and each later moment shows the last frame that has
    appeared by then. A video with fewer frames per second repeats some. See docs/clips-by-time.md."""
    every_s: float | None = Field(None, ge=0.001, le=86_400)
    """The same as `fps`, as seconds from one frame to the next: 2 is a frame every two seconds."""
    seconds: float | None = Field(None, ge=0.001, le=86_400)
    """Choose frames by time so that a clip (or each of its `snippets`) lasts this long: its frames are `seconds` /
    `frames` apart. With `fps` or `every_s` instead of `frames`, a clip has as many frames as fit."""
    max_frames: int | None = Field(None, ge=2, le=MOST_FRAMES)
    """A clip is the whole video (or its `part`) at `fps` or `every_s`, with this many frames: if more would fit, that
    many are spread evenly over the video; if fewer do, the last frame of the video is repeated."""
    spread: Literal["video"] | None = None
    """`video`: spread `frames` frames evenly over the time of the whole video (or its `part`), from its first frame to
    its last."""
    snippets: int = Field(1, ge=1, le=64)
    """Number of pieces into which a clip's frames are split. The video is divided into this many equal parts, and each
    part contributes one snippet of `frames / snippets` frames. A feature is computed for each snippet separately, and
    the scores of a clip's snippets are averaged (TSN). 1: a clip is one piece. See docs/networks.md."""
    part: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]] = (0.0, 1.0)
    """The part of each video from which clips are drawn, as fractions of its length: `[0.25, 0.75]` is its middle half.
    Useful if videos of all classes begin and end alike."""
    resize: ResizeSpec = ResizeSpec()
    """Size of the frames."""
    pixels: Literal["rgb", "yuv420", "gray", "gray16"] = "rgb"
    """`rgb`: converted by libswscale. `yuv420`: frames stay YUV 4:2:0, as in the video, until a trainer uses them: half
    the bytes, and a third of the scaling cost; `rgb` streams still get RGB. `gray`: luma only, a third of the bytes,
    for `flow` and other features that need no colours. `gray16`: luma as the video stores it, with all its bits, as
    uint16, for depth cameras and loops that take frames as they are. See docs/pixels.md."""
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
        rates = dict.fromkeys(_PERIODS) if own.keys() & set(_PERIODS) else {}
        return self.model_copy(update={**rates, **own, "views": {}})

    @property
    def reach(self) -> int:
        """Frames of the first view that a clip takes, from the first moment of any view to the last one, unless they
        are chosen by time."""
        return max([self.span, *(view.span for view in self.further.values())])

    @property
    def snippet_frames(self) -> int:
        """Frames of one snippet."""
        return self.frames // self.snippets

    @property
    def span(self) -> int:
        """Frames of the video from the first to the last frame of a snippet, unless they are chosen by time
        (`essp_common/catalog/timed.py`)."""
        return (self.snippet_frames - 1) * self.stride + 1

    @property
    def by_time(self) -> bool:
        """Whether frames are chosen by time, not by their number."""
        return self.of_whole_video or self.period_s is not None

    @property
    def of_whole_video(self) -> bool:
        """Whether a clip covers its whole video, so that a video has only one."""
        return self.spread is not None or self.max_frames is not None

    @property
    def period_s(self) -> float | None:
        """Seconds from one frame to the next; None: they are not chosen at a rate."""
        if self.fps is not None:
            return 1 / self.fps
        if self.every_s is not None:
            return self.every_s
        return None if self.seconds is None else self.seconds / self.snippet_frames

    @property
    def distance(self) -> str:
        """The distance of frames, in words."""
        if self.spread is not None:
            return "spread over the whole video"
        if self.period_s is None:
            return f"stride {self.stride}"
        rate = f"every {self.period_s:g} s" if self.fps is None else f"at {self.fps:g} per second"
        return f"{rate}, of the whole video" if self.of_whole_video else rate

    @model_validator(mode="before")
    @classmethod
    def _frames_that_follow(cls, given: Any) -> Any:
        """Fill in `frames` if other fields give it, and only these."""
        if not isinstance(given, dict) or given.get("frames") is not None:
            return given
        frames = given.get("max_frames")
        rate = _number(given.get("fps")) or 1 / (_number(given.get("every_s")) or float("inf"))
        if frames is None and rate and (seconds := _number(given.get("seconds"))):
            frames = _fitting(rate, seconds) * (_number(given.get("snippets")) or 1)
        elif (_number(frames) or 0) > MOST_FRAMES:
            return given
        return given if (count := _number(frames)) is None else {**given, "frames": int(count)}

    @model_validator(mode="after")
    def _chooses_frames_one_way(self) -> ClipSpec:
        given = [name for name in _BY_TIME if getattr(self, name) is not None]
        if given and self.stride != 1:
            raise wrong(
                f"{self.stride} counts frames, and {given[0]} chooses them by time; leave out one of the two",
                field="stride",
                code="conflict",
            )
        if len(both := [name for name in ("spread", *_RATES) if name in given]) > 1:
            raise wrong(
                f"{both[0]} says where the frames are, too; leave out one of the two", field=both[1], code="conflict"
            )
        self._check_whole_video(given)
        self._check_frames(given)
        return self

    def _check_whole_video(self, given: list[str]) -> None:
        if self.max_frames is not None and not set(_RATES) & set(given):
            other = "leave it out" if self.spread else "give `fps` or `every_s` with it"
            raise wrong(
                f"limits the frames of a video at a rate; {other}, or write spread: video with `frames` alone",
                field="max_frames",
                code="conflict" if self.spread else "missing",
            )
        if not self.of_whole_video:
            return
        whole = "spread" if self.spread is not None else "max_frames"
        if self.seconds is not None:
            raise wrong(f"a clip with {whole} is as long as its video; leave it out", field="seconds", code="conflict")
        if self.snippets > 1:
            raise wrong(
                f"a clip with {whole} is of the whole video, and cannot be divided; leave it out",
                field="snippets",
                code="conflict",
            )
        if self.frames < _LEAST_SPREAD:
            raise wrong(
                f"{self.frames} cannot be spread over a video; use {_LEAST_SPREAD} or more",
                field="frames",
                code="range",
            )

    def _check_frames(self, given: list[str]) -> None:
        if self.max_frames is not None and self.frames != self.max_frames:
            raise wrong(
                f"with max_frames: {self.max_frames} a clip has that many; leave it out",
                field="frames",
                code="conflict",
            )
        if self.seconds is None or not set(_RATES) & set(given):
            return
        fitting = _fitting(1 / (self.period_s or 1), self.seconds)
        if self.snippet_frames != fitting:
            raise wrong(
                f"{self.seconds:g} s {self.distance} are {fitting} frames, not {self.snippet_frames}; leave out one of "
                "the three",
                field="frames",
                code="conflict",
            )

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
    def _fits_into_patches(self) -> ClipSpec:
        resize = self.resize
        if resize.mode != "bounded":
            return self
        if self.frames % resize.temporal_multiple:
            raise wrong(
                f"{self.frames} is not a multiple of resize.temporal_multiple ({resize.temporal_multiple})",
                field="frames",
                code="conflict",
            )
        together = self.frames if resize.pixels_of == "clip" else 1
        if resize.max_pixels is not None and resize.max_pixels < (least := resize.multiple_of**2 * together):
            raise wrong(
                f"{resize.max_pixels} is less than the smallest clip, {self.frames} frames of {resize.multiple_of} x "
                f"{resize.multiple_of}; use {least} or more",
                field="resize.max_pixels",
                code="range",
            )
        if self.pixels == "yuv420" and resize.multiple_of % 2:
            raise wrong(
                f"{resize.multiple_of} is odd, and pixels: yuv420 has one colour for 2 x 2 pixels; use an even number",
                field="resize.multiple_of",
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
        if self.of_whole_video:
            whole = "spread" if self.spread is not None else "max_frames"
            raise wrong("clips of several views have a rate or a stride; leave it out", field=whole, code="conflict")
        if self.motion:
            raise wrong("the motion of several views is not read; use false, or one view", field="motion")
        for name in self.views:
            if not name:
                raise wrong("a view needs a name", field="views", code="invalid")
            if self.of(name).by_time != self.by_time or (self.by_time and self.of(name).stride != 1):
                raise wrong(
                    "choose the frames of all views by time, or of all by stride",
                    field=f"views.{name}.{'stride' if self.by_time else 'fps'}",
                    code="conflict",
                )
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
    """Raises for a size or codec that the pixel format does not have. `place`: of its settings within those of clip."""
    if clip.pixels in ("yuv420", "gray16") and clip.codec.name == "jpeg":
        raise wrong(
            f"jpeg holds rgb or gray, not pixels: {clip.pixels}; use raw or zstd", field="codec.name", code="conflict"
        )
    if clip.pixels != "yuv420":
        return
    sides = {"short_side": ("height",), "exact": ("height", "width"), "crop": ("height", "width")}
    for side in sides.get(clip.resize.mode, ()):
        if (length := getattr(clip.resize, side)) % 2:
            raise wrong(
                f"{length} is odd, and pixels: yuv420 has one colour for 2 x 2 pixels; use {length - 1} or "
                f"{length + 1}",
                field=f"{place}resize.{side}",
                code="conflict",
            )


_BY_TIME = ("fps", "every_s", "seconds", "max_frames", "spread")
"""The fields that choose frames by time."""
_RATES = ("fps", "every_s")
_PERIODS = (*_RATES, "seconds")
_LEAST_SPREAD = 2
_ROUNDING = 1e-6


def _fitting(fps: float, seconds: float) -> int:
    """Frames at this rate that begin within these seconds, at least one."""
    return max(1, math.ceil(fps * seconds - _ROUNDING))


def _number(value: Any) -> float | None:
    """A number as it is; None for anything else, which the fields then refuse."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST
    return value if known else None


_MOST = 10**9


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

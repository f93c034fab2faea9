"""What a job looks at: the geometry of its clips, and the streams that are made of them."""

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
    """`raw`: uncompressed, no CPU. `jpeg`: 4 to 9 times smaller, lossy. `zstd`: lossless, for flow, not for photos."""
    quality: int = Field(0, ge=0, le=100)
    """JPEG quality 1..100 (0: 95); for zstd the level (0: 1)."""
    subsampling: Literal["444", "422", "420"] = "444"
    """JPEG chroma subsampling."""


class ResizeSpec(Section):
    """Size of the decoded frames. Scaling and colour conversion are one pass."""

    mode: Literal["none", "short_side", "exact", "crop"] = "crop"
    """`short_side`: scale until the short side is `height`. `exact`: scale to `height` x `width` and ignore the aspect
    ratio. `crop`: scale until the frame covers `height` x `width`, then crop the centre."""
    height: int = Field(256, ge=8, le=4320)
    """Pixels; for `short_side`, the length of the short side."""
    width: int = Field(256, ge=8, le=7680)
    """Pixels; not used by `short_side`."""
    interpolation: Literal["fast_bilinear", "bilinear", "bicubic", "area", "lanczos", "nearest"] = "bilinear"
    """A method of libswscale."""


class ClipSpec(Section):
    """The geometry of a clip."""

    frames: int = Field(11, ge=1, le=512)
    """Frames decoded for each seed. A flow stack of length L needs L + 1. Of records: 1."""
    stride: int = Field(1, ge=1, le=64)
    """Distance between those frames in the video."""
    snippets: int = Field(1, ge=1, le=64)
    """In how many pieces those frames are taken: `frames / snippets` of each, and one piece of each of so many equal
    parts of the video. A feature is computed of each snippet by itself, and the scores of a clip's snippets are
    averaged (TSN). 1: a clip is one piece. See docs/networks.md."""
    part: tuple[Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, le=1)]] = (0.0, 1.0)
    """Which part of each video clips are from, as shares of its length: `[0.25, 0.75]` is its middle half. Worth
    a try where videos begin and end with what all classes show."""
    resize: ResizeSpec = ResizeSpec()
    """Size of the frames."""
    pixels: Literal["rgb", "yuv420", "gray"] = "rgb"
    """`rgb`: as libswscale converts. `yuv420`: frames stay YUV 4:2:0, as in the video, until they are learned from:
    half the bytes, and a third of the cost to scale; `rgb` streams get RGB all the same. `gray`: luma alone, a third of
    the bytes, for `flow` and other features that need no colours. See docs/pixels.md."""
    codec: CodecSpec = CodecSpec()
    """How the clip's frames are stored in the cache."""

    @property
    def snippet_frames(self) -> int:
        """Frames of one snippet."""
        return self.frames // self.snippets

    @property
    def span(self) -> int:
        """Frames of the video from the first of a snippet to its last."""
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
    def _fits_into_planes(self) -> ClipSpec:
        if self.pixels != "yuv420":
            return self
        if self.codec.name == "jpeg":
            raise wrong(
                "jpeg holds rgb or gray, not pixels: yuv420; use raw or zstd", field="codec.name", code="conflict"
            )
        sides = {"short_side": ("height",), "exact": ("height", "width"), "crop": ("height", "width")}
        for side in sides.get(self.resize.mode, ()):
            if (length := getattr(self.resize, side)) % 2:
                raise wrong(
                    f"{length} is odd, and pixels: yuv420 has one colour for 2 x 2 pixels; "
                    f"use {length - 1} or {length + 1}",
                    field=f"resize.{side}",
                    code="conflict",
                )
        return self


class StreamSpec(Section):
    """A feature as the input of models."""

    feature: Label = "rgb"
    """An extractor's name (`essp extractor ls`)."""
    params: Params = Field({})
    """The extractor's parameters (`essp extractor describe NAME`). `rgb`: `frames`, how many of the clip's frames.
    All others: `every`, to take every n-th frame of the clip, and `short_side`, to make frames smaller first.
    `flow` and its variants: `bound`, the largest displacement kept, as a share of the frame's short side (0.08: 20 px
    of 256, as in the two-stream papers). As a share it means the same motion of the scene at any size of the frame. It
    is not measured on the videos: a model would then not fit another catalog. The report says how much is clipped."""
    codec: CodecSpec = CodecSpec()
    """How the feature is stored in the cache. `rgb` uses the codec of the clip."""

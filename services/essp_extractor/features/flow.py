"""`flow`: dense optical flow between consecutive frames, stacked and quantised (Simonyan & Zisserman, 2014).

The methods are those of `essp_extractor.motion.fields`; the flow of a clip is a function of the clip alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from essp_common.features.intermediates import Intermediates
from essp_extractor.features.stacked import StackedFlow
from essp_extractor.motion.fields import Farneback, FlowMethod, MethodName, Preset
from essp_extractor.motion.fields import Field as FlowField
from essp_extractor.motion.tvl1 import TvL1


class Flow(StackedFlow):
    """Flow of the clip's middle `length + 1` frames: `(1, H, W, 2 * length) uint8`, channels dx0, dy0, dx1, dy1, ...

    dx points right, dy down, in pixels from a frame to the next, coded as in `essp_common.features.quantization`:
    128 is no motion and one step is `bound / 127` px, so the largest rounding error is `bound / 254` px.
    """

    name: ClassVar[str] = "flow"
    summary: ClassVar[str] = "Dense optical flow, stacked (motion): DIS, Farnebäck or TV-L1."

    def __init__(
        self,
        method: MethodName = "dis",
        length: Annotated[int, Field(ge=1, le=64)] = 10,
        bound: Annotated[float, Field(gt=0, le=1000)] = 20.0,
        preset: Preset = "ultrafast",
        pyr_scale: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        levels: Annotated[int, Field(ge=1, le=10)] = 3,
        winsize: Annotated[int, Field(ge=3, le=101)] = 15,
        iterations: Annotated[int, Field(ge=1, le=20)] = 3,
        poly_n: Literal[5, 7] = 5,
        poly_sigma: Annotated[float, Field(gt=0, le=5)] = 1.1,
        weight: Annotated[float, Field(gt=0, le=10)] = 0.15,
        tightness: Annotated[float, Field(gt=0, le=10)] = 0.3,
        warps: Annotated[int, Field(ge=1, le=50)] = 5,
    ) -> None:
        """`length`: flow fields in the stack; needs one frame more. `bound`: the largest displacement kept, in pixels.

        `preset` is DIS's trade of speed for accuracy. `pyr_scale` to `poly_sigma` are Farnebäck's: scale between
        pyramid levels, their number, averaging window, iterations on each level, neighbourhood of the polynomial (5 or
        7; with it go `poly_sigma` 1.1 or 1.5). The rest are TV-L1's: lambda (the larger, the less smooth), theta and
        the warps on each level.
        """
        farneback = Farneback(pyr_scale, levels, winsize, iterations, poly_n, poly_sigma)
        tvl1 = TvL1(weight, tightness, warps=warps)
        super().__init__(FlowMethod(self.name, method, preset, farneback, tvl1), length, bound)

    def _fields(self, shared: Intermediates, first: int) -> Iterator[FlowField]:
        return (self._flow.between(shared, i, i + 1) for i in range(first, first + self._length))

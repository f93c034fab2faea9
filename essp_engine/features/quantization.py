"""Stores signed features as uint8: zero is exactly 128, and a change of sign is exactly `256 - code`.

Codes run from 1 to 255; 0 never occurs. The range is symmetric, so mirroring a picture, which negates horizontal flow,
loses no precision. A displacement `v` in pixels becomes

    code = 128 + round(clip(v, -bound, bound) * 127 / bound)

So one step is `bound / 127` pixels, and within the bound the error is at most half a step: 0.079 px for a bound of 20
px. `usage` shows whether a bound is suitable: if it is too small, all large motions are alike (clipped); if it is too
large, small ones are lost (zero).

The mapping of the original two-stream code, `(v + bound) * 255 / (2 * bound)`, has steps of the same size, but zero is
between two codes: a still background would seem to move.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ZERO = 128
"""The code of zero in every signed uint8 feature."""
_HALF_RANGE = 127
_SAMPLED_ROWS = 4
"""`usage` reads one row in this many, which costs a hundredth of computing the flow."""


class Usage(NamedTuple):
    """The distribution of codes."""

    codes: int
    """Number of codes examined."""
    clipped: int
    """Codes at either end of the range, which includes all values beyond the bound."""
    zero: int
    """Codes for no motion."""


def quantize(displacement: NDArray[np.float32], bound: float) -> NDArray[np.uint8]:
    """Codes of displacements in pixels, of any shape. NaN counts as no motion."""
    scaled = displacement * np.float32(_HALF_RANGE / bound)
    np.clip(scaled, -_HALF_RANGE, _HALF_RANGE, out=scaled)
    if np.isnan(scaled.sum()):  # NaN is rare, and this test is five times cheaper than replacing it
        np.nan_to_num(scaled, copy=False, nan=0.0)
    np.rint(scaled, out=scaled)
    scaled += ZERO
    return scaled.astype(np.uint8)


def negate(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The codes of the negated displacements, as in a mirrored picture."""
    return np.subtract(0, codes, dtype=np.uint8, casting="unsafe")  # modulo 256


def usage(feature: NDArray[Any]) -> Usage:
    """The usage of codes in a feature `(T, H, W, C)`, from every fourth row."""
    rows = feature[:, ::_SAMPLED_ROWS]
    clipped = sum(int(np.count_nonzero(rows == end)) for end in (ZERO - _HALF_RANGE, ZERO + _HALF_RANGE))
    return Usage(rows.size, clipped, int(np.count_nonzero(rows == ZERO)))

"""How strong the storms are, and what they are made of: odd values, and damage to bytes.

`ESSP_STORM=20 pytest tests/adversary` (or `make storm STRENGTH=20`) tries twenty times as many examples, each time
others. Without it the examples are few and always the same, so that a failure is the fault of the change at hand.
"""

from __future__ import annotations

import math
import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

STRENGTH = int(os.environ.get("ESSP_STORM", "1"))

ODD_NUMBERS = st.sampled_from(
    [0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**100]
) | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e-320, 1e308, 0.5, -2.5])
ODD_TEXTS = st.sampled_from(
    ["", " ", ".", "..", "/", "~", "null", "true", "1e400", "\u00b2", "x" * 5000, "a\nb", "\x00", "\x1b[2J", "\u202e"]
) | st.text(max_size=12)


def storm(examples: int, shrinks: bool = True) -> settings:
    """Settings for this many examples times the strength; at strength 1, for half as many. `shrinks=False` is for
    deployments, whose state stays from one example to the next."""
    return settings(
        max_examples=examples * STRENGTH if STRENGTH > 1 else (examples + 1) // 2,
        derandomize=STRENGTH == 1,
        database=None,
        phases=tuple(phase for phase in Phase if shrinks or phase is Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that were cut, flipped, overwritten, emptied or added to."""
    if not data:
        return draw(st.binary(min_size=1, max_size=64))
    place = draw(st.integers(0, len(data) - 1))
    match draw(st.sampled_from(["cut", "flip", "overwrite", "empty", "append", "repeat", "zero"])):
        case "cut":
            return data[:place]
        case "flip":
            return data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]
        case "overwrite":
            random = draw(st.binary(min_size=1, max_size=64))
            return data[:place] + random + data[place + len(random) :]
        case "empty":
            return b""
        case "append":
            return data + draw(st.binary(min_size=1, max_size=64))
        case "repeat":
            return data + data
    return data[:place] + bytes(len(data) - place)

"""The minimum of a smooth function: SciPy's L-BFGS-B, from a given start and without random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Loss = Callable[[Floats], tuple[float, Floats]]
"""Parameters `(P,)` -> the loss, and its gradient `(P,)`."""

MOST_STEPS = 500
_FLAT = 1e-7
"""The largest absolute element of a gradient that counts as flat."""


def lowest(
    loss: Loss,
    start: Floats,
    *,
    flat: float = _FLAT,
    bounds: Sequence[tuple[float, float]] | None = None,
    told: Callable[[int], None] = lambda step: None,
) -> Floats:
    """The best parameters after at most `MOST_STEPS`. `told` receives the number of each step, and may raise."""
    from scipy.optimize import minimize  # the master reads strategies without fitting any, and has no SciPy

    steps = iter(range(MOST_STEPS + 1))
    told(next(steps))
    options = {"maxiter": MOST_STEPS, "maxfun": 20 * MOST_STEPS, "gtol": flat, "ftol": 0.0}
    found = minimize(
        loss, start, method="L-BFGS-B", jac=True, bounds=bounds, callback=lambda _: told(next(steps)), options=options
    )
    lowest_place: Floats = found.x
    return lowest_place

"""The progress of a fit, for users who wait: with many rows it takes minutes."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str, int, int], None]
"""Receives what is fitted, as in `a mixture of Gaussians`; the number of finished steps; and the maximum number of
steps.

It may block, and it may raise: then the fit stops without a result.
"""


def silent(_what: str, _done: int, _most: int) -> None:
    """Reports nothing."""

"""How far a fit is, for who waits for it: with many rows it takes minutes."""

from __future__ import annotations

from collections.abc import Callable

Tell = Callable[[str, int, int], None]
"""What is fitted, as in `a mixture of Gaussians`; how many steps are done; and how many there may be at most.

Who is told may wait, and may raise: then the fit is left, and nothing has come of it.
"""


def silent(_what: str, _done: int, _most: int) -> None:
    """Nobody waits."""

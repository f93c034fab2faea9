"""How often Python looks for garbage in cycles, in processes that are ESSP's own.

What is not part of a cycle is freed at once, whatever these numbers are. A search looks at every object that is younger
than the last one, or at all of them; by default one begins whenever 700 more objects are there. While torch is loaded,
which makes a million that stay, a tenth of the time is spent on that.
"""

from __future__ import annotations

import gc


def collect_rarely(thresholds: tuple[int, int, int] = (10_000, 10, 10)) -> None:
    """Look for cycles less often. `thresholds`: those of `gc.set_threshold`. Not for a process of the user's."""
    gc.set_threshold(*thresholds)

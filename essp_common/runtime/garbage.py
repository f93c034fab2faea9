"""How often Python searches for reference cycles, in processes that are ESSP's own.

Objects outside of cycles are freed at once, whatever these thresholds are. A collection visits every object created
since the last one, or all objects; by default one begins for every 700 new objects. While torch is loaded, which
creates a million permanent objects, that takes a tenth of the time.
"""

from __future__ import annotations

import gc


def collect_rarely(thresholds: tuple[int, int, int] = (10_000, 10, 10)) -> None:
    """Collect less often. `thresholds`: as for `gc.set_threshold`. Not for a process that belongs to the user."""
    gc.set_threshold(*thresholds)

"""The frames of the further views of an event at the moments of a clip.

A plan chooses frames of the first view. All views of a clip end at the same moment, when its last frame appears, and
the moments before it are `stride` frames of the first view apart, for each view by its own number of frames and its own
stride. At each moment, a view shows the last of its frames that has appeared by then. Times count from the beginning of
the event in each file (`VideoRow.origin_s`), so cameras may have different rates and have started at different times.

Before the first frame of a view, that frame is taken, and after its last one, the last one.
"""

from __future__ import annotations

from functools import lru_cache

from essp_common.catalog.rows import Rows
from essp_common.catalog.timing import Clock
from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec

_KEPT = 4096
"""Events whose clocks are cached."""


class Moments:
    """The frames of further views, for the clips of one `CatalogView`. Not thread-safe."""

    def __init__(self, view: CatalogView, clip: ClipSpec) -> None:
        further = clip.further
        self._rows = view.rows
        self._further: list[Rows] = [view.further[name] for name in further]
        self._ends = (clip.frames - 1) * clip.stride
        """Frames of the first view from the first to the last one of a clip."""
        self._back = [range((shape.frames - 1) * shape.stride, -1, -shape.stride) for shape in further.values()]
        """For each view, how many frames of the first view its moments lie before the end of the clip."""
        self._clocks = lru_cache(maxsize=_KEPT)(self._read)

    def frames(self, video: int, first_frame: int) -> list[list[int]]:
        """For each further view, its frames in its file, which rise and may repeat. `first_frame`: of the clip, in the
        file of the first view."""
        first, *others = self._clocks(video)
        end = first_frame + self._ends
        return [
            other.shown([first.appears_s(end - back) for back in before])
            for other, before in zip(others, self._back, strict=True)
        ]

    def _read(self, video: int) -> list[Clock]:
        return [Clock(rows, video) for rows in (self._rows, *self._further)]

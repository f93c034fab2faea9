"""What a video is drawn from: its class; or first its source and then its class, if a job mixes sources.

A cell is a class, or a class of a source. Draws are uniform among classes (of the source), and by share among sources.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.counter_rng import below, below_each
from essp_common.errors import ConfigError
from essp_common.job.data_spec import MixSpec
from essp_common.quantities import counted
from essp_common.validation import suggested

_WHOLE = 2**31
"""Shares are rounded to multiples of one part in 2**31."""
_MOST_NAMED = 3


class _Sources(NamedTuple):
    """The sources of a mix, by their shares."""

    ends: NDArray[np.int64]
    """Where the share of each ends, in parts of `_WHOLE`."""
    begins: NDArray[np.int64]
    """The first cell of each."""
    counts: NDArray[np.uint64]
    """How many cells each has."""


class Cells:
    """The cells of the videos of a view that have at least one video."""

    def __init__(self, view: CatalogView, mix: MixSpec | None) -> None:
        """Raises `ConfigError` if the mix does not fit the videos."""
        self._classes = view.classes
        self._source_names: tuple[str, ...] = ("",)
        self._sources: _Sources | None = None
        if mix is None:
            self.videos, begins, counts = view.in_classes, view.class_begin[:-1], np.diff(view.class_begin)
            self._cells = np.flatnonzero(counts)
            begins, counts = begins[self._cells], counts[self._cells]
        else:
            self._source_names = tuple(mix.shares)
            cell_of = _source_of(view, mix) * len(view.classes) + view.class_id
            self.videos = np.argsort(cell_of, kind="stable").astype(np.int32)
            self._cells, begins, counts = np.unique(cell_of[self.videos], return_index=True, return_counts=True)
            self._sources = _by_share(mix, self._cells // len(view.classes))
        self.begins: NDArray[np.int64] = begins.astype(np.int64)
        """Where each cell begins in `videos`, which are ordered by cell."""
        self.counts: NDArray[np.uint64] = counts.astype(np.uint64)
        """How many videos each cell has."""
        self.used = 1 if mix is None else 2
        """Random words of a draw."""

    def __len__(self) -> int:
        return len(self.counts)

    def name(self, cell: int) -> str:
        """The cell, for messages."""
        source, class_id = divmod(int(self._cells[cell]), len(self._classes))
        of = f" of {self._source_names[source]!r}" if self._source_names[source] else ""
        return f"class {self._classes[class_id]!r}{of}"

    def drawn(self, words: Iterator[int]) -> int:
        """A cell."""
        if self._sources is None:
            return below(words, len(self))
        source = bisect_right(self._sources.ends, below(words, _WHOLE))
        return int(self._sources.begins[source]) + below(words, int(self._sources.counts[source]))

    def drawn_each(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For each row of words, a cell, and whether `drawn` might give another one."""
        if self._sources is None:
            return below_each(words[:, 0], np.full(len(words), len(self), np.uint64))
        part, _ = below_each(words[:, 0], np.full(len(words), _WHOLE, np.uint64))  # a power of two refuses none
        source = np.searchsorted(self._sources.ends, part, side="right")
        within, refused = below_each(words[:, 1], self._sources.counts[source])
        return self._sources.begins[source] + within, refused


def _source_of(view: CatalogView, mix: MixSpec) -> NDArray[np.int64]:
    """(n,) the index of each video's source in the shares."""
    sources = list(mix.shares)
    values = view.values(mix.column, "sampling.mix.column")
    if unnamed := sorted(set(values) - set(sources)):
        named = ", ".join(repr(value) for value in unnamed[:_MOST_NAMED])
        raise ConfigError(
            f"{counted(sum(value in unnamed for value in values), 'training video')} have {mix.column} {named}"
            f"{' and more' if len(unnamed) > _MOST_NAMED else ''}; give each value a share",
            field="sampling.mix.shares",
            code="missing",
        )
    if empty := [source for source in sources if source not in values]:
        raise ConfigError(
            f"no training video has {mix.column} {empty[0]!r}; {suggested(empty[0], sorted(set(values)))}",
            field="sampling.mix.shares",
            code="unknown",
        )
    number = {source: index for index, source in enumerate(sources)}
    return np.array([number[value] for value in values], np.int64)


def _by_share(mix: MixSpec, of_source: NDArray[np.int64]) -> _Sources:
    """`of_source`: the source of each cell, ascending."""
    shares = np.array(list(mix.shares.values()))
    ends = np.round(np.cumsum(shares) / shares.sum() * _WHOLE).astype(np.int64)
    ends[-1] = _WHOLE
    numbers = np.arange(len(shares))
    begins = np.searchsorted(of_source, numbers)
    counts = np.searchsorted(of_source, numbers, side="right") - begins
    return _Sources(ends, begins.astype(np.int64), counts.astype(np.uint64))

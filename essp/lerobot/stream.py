"""The items of a data set in an order that decodes each frame about once: `LeRobotDataset.stream`.

Every episode is cut into visits of consecutive items. An epoch goes through all visits in its own order, and mixes the
items within windows of several visits. A window is decoded while the items of the one before are given out. The order
depends on seed and epoch only, so the number of items that were taken describes a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from essp.api.arguments import mapping_of, rendezvous_of, whole_number
from essp_common.errors import ConfigError

Item = dict[str, Any]
Raw = NDArray[Any] | torch.Tensor
"""A picture before conversion: `(3, H, W)` uint8, or `(1, H, W)` uint16 codes."""
Decoded = Mapping[tuple[str, int], Raw]
"""The pictures of items, by camera and row."""
Window = Mapping[str, Sequence[int]]
"""Camera -> the rows whose pictures an item has."""

_WINDOW_BYTES = 1 << 28
_Read = tuple[Sequence[int], Decoded]
_Reading = Future[_Read] | None
_LEAST_VISITS, _MOST_VISITS = 8, 64


class Items(Protocol):
    """What a stream takes its items from: a `LeRobotDataset`."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of the decoded pictures of one item, as uint8."""

    @property
    def visits(self) -> NDArray[np.int64]:
        """`(episodes, 2)`: the first item of each episode, and the one after its last."""

    def __len__(self) -> int: ...

    def window(self, row: int) -> Window:
        """The rows whose pictures the item of a row has."""

    def pictures(self, windows: Sequence[Window]) -> Decoded:
        """The decoded pictures of these items. Raises `BadVideo`."""

    def built(self, rows: Sequence[int], pictures: Decoded) -> list[Item]:
        """The items of these rows."""

    def batch(self, rows: Sequence[int], pictures: Decoded) -> Item:
        """The items of these rows, stacked."""


class Stream(IterableDataset[dict[str, Any]]):
    """See `LeRobotDataset.stream`. Each `for` over it is one epoch; after a `break`, the next one is the next epoch.

        stream = data.stream(clips_per_visit=32, batch_size=64)
        for epoch in range(stream.epoch, 10):
            for batch in stream: ...
            torch.save({"stream": stream.state_dict()}, "loop.pt")

    `state_dict` is the position after the last item or batch that was taken, and `load_state_dict` resumes there, also
    in the middle of an epoch. With the workers of a `DataLoader` (`batch_size=None` there, if the stream has one), call
    `set_epoch` before each epoch; torchdata's `StatefulDataLoader` saves their states.
    """

    def __init__(
        self,
        dataset: Items,
        *,
        shuffle: bool,
        clips_per_visit: int,
        window: int | None,
        batch_size: int | None,
        seed: int,
        drop_last: bool,
        rank: int | None,
        world_size: int | None,
    ) -> None:
        """Raises `ConfigError`."""
        self.dataset = dataset
        self.batch_size, self.drop_last = batch_size, drop_last
        self._shuffle, self._seed = shuffle, seed
        self._per_visit = clips_per_visit
        if window is None:
            visit_bytes = clips_per_visit * dataset.frame_bytes
            window = min(max(_WINDOW_BYTES // max(visit_bytes, 1), _LEAST_VISITS), _MOST_VISITS) * clips_per_visit
        if window % clips_per_visit:
            raise ConfigError(
                f"must be a multiple of clips_per_visit ({clips_per_visit}), got {window}",
                field="window",
                code="conflict",
            )
        self.window = window
        place = rendezvous_of(rank, world_size)
        self._rank, self._ranks = place.rank, place.world_size
        if len(dataset) < self._ranks:
            raise ConfigError(
                f"{self._ranks} ranks need as many items, and there are {len(dataset)}",
                field="world_size",
                code="range",
            )
        self._visits = _visits(dataset.visits, clips_per_visit)
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers see what `set_epoch` sets
        self._taken = 0

    @property
    def epoch(self) -> int:
        """The epoch of the next `for`."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin with this epoch, also in workers."""
        self._epoch.fill_(whole_number("epoch", epoch, 0))
        self._taken = 0

    def __len__(self) -> int:
        """Items of an epoch of this rank, or its batches if the stream has a `batch_size`."""
        items = len(self.dataset) // self._ranks
        if self.batch_size is None:
            return items
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)

    def state_dict(self) -> dict[str, int]:
        """The position: an epoch, and how many of its items were taken."""
        return {"epoch": self.epoch, "items": self._taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume at a position of a stream with the same data set, arguments and ranks. Raises `ConfigError`."""
        found = mapping_of("state", state)
        if found.keys() != {"epoch", "items"}:
            raise ConfigError("is not a state of a stream", field="state", code="invalid")
        self.set_epoch(found["epoch"])
        self._taken = whole_number("state.items", found["items"], 0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        epoch, begin = self.epoch, self._taken
        try:
            for size, made in self._batches(epoch, begin) if self.batch_size else self._items(epoch, begin):
                self._taken += size
                yield made
        finally:
            if self.epoch == epoch and get_worker_info() is None:
                self.set_epoch(epoch + 1)

    def _items(self, epoch: int, begin: int) -> Iterator[tuple[int, Item]]:
        for row, pictures in self._decoded(epoch, begin):
            yield 1, self.dataset.built([row], pictures)[0]

    def _batches(self, epoch: int, begin: int) -> Iterator[tuple[int, Item]]:
        rows: list[int] = []
        held: dict[tuple[str, int], Raw] = {}
        for row, pictures in self._decoded(epoch, begin):
            rows.append(row)
            for camera, wanted in self.dataset.window(row).items():
                held.update({(camera, place): pictures[camera, place] for place in wanted})
            if len(rows) == self.batch_size:
                yield len(rows), self.dataset.batch(rows, held)
                rows, held = [], {}
        if rows and not self.drop_last:
            yield len(rows), self.dataset.batch(rows, held)

    def _decoded(self, epoch: int, begin: int) -> Iterator[tuple[int, Decoded]]:
        """The rows of an epoch from `begin`, each with the pictures of its window."""
        windows = self._windows(epoch, begin)
        with ThreadPoolExecutor(1, "essp-lerobot-ahead") as ahead:
            reading = _begun(ahead, self._read, windows)
            while reading is not None:
                rows, pictures = reading.result()
                reading = None
                for place, row in enumerate(rows, 1):
                    yield row, pictures
                    if place == min(self.batch_size or 1, len(rows)):  # the window before is no longer in use
                        reading = _begun(ahead, self._read, windows)

    def _read(self, rows: Sequence[int]) -> _Read:
        return rows, self.dataset.pictures([self.dataset.window(row) for row in rows])

    def _windows(self, epoch: int, begin: int) -> Iterator[list[int]]:
        """The rows of each window, mixed; the first window begins at item `begin` of this share."""
        order = np.arange(len(self._visits))
        if self._shuffle:
            order = np.random.default_rng([self._seed, epoch]).permutation(order)
        visits = self._visits[order]
        ends = np.cumsum(visits[:, 1] - visits[:, 0])
        first, last = self._share(int(ends[-1]))
        for number, start in enumerate(range(first, last, self.window)):
            stop = min(start + self.window, last)
            if stop <= first + begin:
                continue
            places = np.arange(start, stop)
            visit = np.searchsorted(ends, places, side="right")
            rows = visits[visit, 1] - (ends[visit] - places)
            if self._shuffle:
                rows = np.random.default_rng([self._seed, epoch, first, number]).permutation(rows)
            yield rows[max(first + begin - start, 0) :].tolist()

    def _share(self, items: int) -> tuple[int, int]:
        """The first item of this rank and worker in the order of the epoch, and the one after the last. Ranks have
        equally many: at most `ranks - 1` items are left out, in each epoch others."""
        each = items // self._ranks
        first, last = self._rank * each, (self._rank + 1) * each
        worker = get_worker_info()
        if worker is None:
            return first, last
        cuts = [first + each * number // worker.num_workers for number in (worker.id, worker.id + 1)]
        return cuts[0], cuts[1]


def _begun(pool: ThreadPoolExecutor, read: Callable[[list[int]], _Read], windows: Iterator[list[int]]) -> _Reading:
    """Begin to read the next window; None after the last."""
    following = next(windows, None)
    return None if following is None else pool.submit(read, following)


def _visits(episodes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """`(visits, 2)`: the first row of each visit, and the one after its last."""
    lengths = episodes[:, 1] - episodes[:, 0]
    counts = -(-lengths // length)
    owners = np.repeat(np.arange(len(episodes)), counts)
    turns = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = episodes[owners, 0] + turns * length
    return np.stack([begins, np.minimum(begins + length, episodes[owners, 1])], axis=1)

"""Loads the records of an epoch into memory before the loop asks for them: piece by piece, each read in one pass.

    order of the epoch ──▶ piece: its records, by place ──read in ascending order──▶ memory ──▶ batches, in the order

Two pieces are in memory at a time, one in use and one being read. The first piece is one batch, so that it arrives at
once, and each one is larger than the one before until a piece fills half of the memory. A large piece costs less per
record than a small one, so the best piece is the largest that can be read before the loop needs it. If even the
smallest is too late, reading is the bottleneck, and doubling the size is still better than keeping it. If all records
fit, each is read once and stays.

The order of records depends only on the sampler: the sizes of pieces affect nothing but speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from essp.records.held import Files, Held, Places, RawImages, distinct
from essp_common.errors import EsspError
from essp_common.records.reader import RecordReader
from essp_common.records.sampler import Draws
from essp_common.runtime.retry import retry_transient

_LEAST_GROWTH, _MOST_GROWTH = 2.0, 16.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one epoch, in order.

    Damaged records are omitted, unless there are several ranks, which must all take the same number of steps.
    """

    epoch: int
    indices: Places
    """For each record, its index in the rank's share of the epoch, ascending."""
    places: Places
    """For each record, its place in the data set; -1: damaged."""
    held: Held
    last: bool
    """Whether these are the last records of the epoch."""


@dataclass(slots=True)
class Meter:
    """The time that reading has cost a loop so far."""

    pieces: int = 0
    records: int = 0
    read_s: float = 0.0
    first_s: float = 0.0
    """Seconds that the loop has waited for its first piece, each time it began."""
    stalled_s: float = 0.0
    """Seconds that the loop has waited for other pieces."""
    loop_s: float = 0.0
    """Seconds that the loop has spent between its pieces, without waiting."""


@dataclass(frozen=True, slots=True)
class Share:
    """Every `ranks`-th record of an epoch, starting with `rank`."""

    rank: int = 0
    ranks: int = 1

    def size(self, records: int) -> int:
        """Records of an epoch for each rank. Up to `ranks - 1` records are left out, different ones in each epoch."""
        return records // self.ranks


def growth(loop_s: float, read_s: float) -> float:
    """The factor by which the next piece may be larger than the one that the loop has just begun to use.

    `loop_s` and `read_s`: time per record of the loop and of reading, for the last pieces. A larger piece does not take
    more time per record, so one that is `loop_s / read_s` times as large is ready in time. The bounds keep a few
    batches from deciding alone: the first steps of a training take longer than the others.
    """
    return min(_MOST_GROWTH, max(_LEAST_GROWTH, loop_s / read_s if read_s else _MOST_GROWTH))


class Pieces:
    """Reads pieces in its own thread, for one loop."""

    def __init__(
        self,
        reader: RecordReader,
        draws: Draws,
        share: Share,
        memory_bytes: int,
        first: int,
        start: tuple[int, int],
        meter: Meter,
    ) -> None:
        """`first`: the number of records in the first piece, and the minimum for all pieces: one batch. `start`: epoch,
        and index in the rank's share of it. `meter`: is updated."""
        self._reader = reader
        self._draws = draws
        self._share = share
        self._memory_bytes = memory_bytes
        self._first = first
        self._meter = meter
        self._used: Piece | None = None
        """The piece that the loop is using."""
        self._used_since_s = 0.0
        self._loop_s = 0.0
        """Seconds that the loop took per record of the previous piece."""
        self._lengths = reader.table["length"].astype(np.int64)
        self._shape = reader.shape
        self._all: Held | None = None
        """Holds all records, if they fit into memory."""
        if int(self._lengths.sum()) <= memory_bytes:
            self._all = RawImages(reader, self._shape) if self._shape else Files(reader)
        self._waiting: Piece | None = None
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, args=start, name="essp-records", daemon=True)
        self._thread.start()

    def next(self) -> Piece:
        """The next piece. Raises the error that stopped the reading, or `EsspError` after `close`."""
        asked_s = time.perf_counter()
        with self._changed:
            if self._used is not None and not self._used.last:  # between epochs, a loop may do other work
                self._meter.loop_s += asked_s - self._used_since_s
                self._loop_s = (asked_s - self._used_since_s) / max(1, len(self._used.places))
            self._changed.wait_for(lambda: self._waiting or self._failure or self._closing.is_set())
            piece, self._waiting = self._waiting, None
            if piece is None:
                raise self._failure or EsspError("the records are not read any more")
            now_s = time.perf_counter()
            if self._used is None:
                self._meter.first_s += now_s - asked_s
            else:
                self._meter.stalled_s += now_s - asked_s
            self._used, self._used_since_s = piece, now_s
            self._changed.notify_all()
        return piece

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _run(self, epoch: int, index: int) -> None:
        try:
            pieces = self._pieces(epoch, index)
            while self._has_room():
                self._offer(next(pieces))
        except BaseException as error:  # noqa: BLE001  raised again by `next`
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until the last piece read is in use. Returns False when closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None or self._closing.is_set())
            return not self._closing.is_set()

    def _offer(self, piece: Piece) -> None:
        with self._changed:
            self._waiting = piece
            self._changed.notify_all()

    def _pieces(self, epoch: int, index: int) -> Iterator[Piece]:
        most = self._first
        share, size = self._share, self._share.size(self._reader.version.records)
        while True:
            while index < size:
                stop = min(size, index + most)
                drawn = self._draws.piece(epoch, index * share.ranks, stop * share.ranks)[share.rank :: share.ranks]
                order = self._reader.places(drawn)
                order = order[: self._fitting(order)]
                begin_s = time.perf_counter()
                piece = self._read(epoch, index, order, index + len(order) == size)
                read_s = time.perf_counter() - begin_s
                self._meter.pieces += 1
                self._meter.records += len(order)
                self._meter.read_s += read_s
                yield piece
                index += len(order)
                most = int(len(order) * growth(self._loop_s, read_s / len(order)))
            epoch, index = epoch + 1, 0

    def _fitting(self, order: Places) -> int:
        """How many of these records fit into half of the memory; at least one batch."""
        if self._all is not None:
            return len(order)
        return max(
            self._first, int(np.searchsorted(np.cumsum(self._lengths[order]), self._memory_bytes // 2, side="right"))
        )

    def _read(self, epoch: int, begin: int, order: Places, last: bool) -> Piece:
        held = self._all
        good = order >= 0
        here = order[good]
        if held is None:
            held = RawImages(self._reader, self._shape, distinct(here)) if self._shape else Files(self._reader)
        good[good] = retry_transient(partial(held.have, here), self._closing.is_set, self._closing.wait)
        indices = np.arange(begin, begin + len(order))
        if self._share.ranks > 1:
            return Piece(epoch, indices, np.where(good, order, -1), held, last)
        return Piece(epoch, indices[good], order[good], held, last)

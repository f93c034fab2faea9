"""Writes the batches of a shared loader: a thread in the process that shared it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from essp.records.handover import WAIT, Board, Slot, Status
from essp.records.ring import Home, Ring
from essp.records.slots import Packed

log = logging.getLogger(__name__)

_PAGE = 4096
_SPARE = 8
"""A slot gets an eighth more room than its first batch needs, because the records' metadata varies in length."""

Span = tuple[int, int]
"""Start and stop in an epoch."""


class Source(Protocol):
    """Where batches come from."""

    def batches(self, epoch: int, span: Span) -> Iterator[tuple[int, Packed]]:
        """The batches between start and stop, each with the index at which it ends."""

    def close(self) -> None:
        """End what it started. Called in the thread that uses it."""


class Feeder:
    """Writes batches as long as there are slots for them. Reads nothing before the first member has joined."""

    def __init__(
        self, home: Home, ring: Ring, source: Source, memory_bytes: int, spans: Callable[[int], list[Span]]
    ) -> None:
        """Takes ownership of `ring`. `memory_bytes`: for batches written ahead; there are at least two for each member
        in any case. `spans`: the remaining parts of an epoch."""
        self._home = home
        self._source = source
        self._memory_bytes = memory_bytes
        self._spans = spans
        self._ring = ring
        self._ring.feed()
        self._closing = threading.Event()
        self._slot = WAIT
        self._room: dict[int, tuple[int, int]] = {}
        """Slot -> place and bytes."""
        self._thread = threading.Thread(target=self._run, name="essp-shared", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the members that no more batches come, and end. Idempotent."""
        self._closing.set()
        if self._ring.is_open:
            self._ring.step(Board.end, Status.CLOSED)
            self._thread.join()
            self._ring.close()

    def _run(self) -> None:
        try:
            while not self._ring.step(_joined):
                self._wait()
            while True:
                self._feed(self._ring.step(_fed_epoch))
        except _Closing:
            pass
        except BaseException as error:
            log.exception("a shared loader cannot be fed any more")
            text = f"{type(error).__name__}: {error}".encode()
            self._ring.step(Board.end, Status.FAILED, self._home.write(text), len(text))
        finally:
            self._source.close()

    def _feed(self, epoch: int) -> None:
        """Write the batches of an epoch; stop if members move on to another epoch in the meantime."""
        for span in self._spans(epoch):
            start = span[0]
            for stop, batch in self._source.batches(epoch, span):
                if not self._offer(epoch, start, stop, batch):
                    return
                start = stop
        self._ring.step(Board.end_epoch, epoch)

    def _offer(self, epoch: int, start: int, stop: int, batch: Packed) -> bool:
        """Write a batch as soon as there is room. Returns False if it is no longer needed."""
        if not self._room:
            self._open_slots(batch.size)
        while self._slot == WAIT:
            self._slot = self._ring.step(Board.reserve)
            if self._slot == WAIT:
                self._wait()
        if self._closing.is_set():
            raise _Closing
        place = self._place(self._slot, batch.size)
        # A member may read the slot as soon as it is published, so the batch is written first.
        batch.write(self._home.memory, place)
        before, self._slot = (
            self._slot,
            self._ring.step(Board.publish, self._slot, Slot(epoch, start, stop, place, batch.size)),
        )
        return self._slot != before

    def _open_slots(self, size: int) -> None:
        def open_slots(board: Board) -> None:
            board.open_slots(max(2 * board.members + 2, min(board.most_slots, self._memory_bytes // size)))

        self._ring.step(open_slots)

    def _place(self, slot: int, size: int) -> int:
        """The place of a slot with at least this much room."""
        place, room = self._room.get(slot, (0, 0))
        if room < size:
            room = -(-(size + size // _SPARE) // _PAGE) * _PAGE
            place = self._home.grow(room)
            self._room[slot] = place, room
        return place

    def _wait(self) -> None:
        if self._ring.wait_as_feeder():
            self._ring.bury_the_dead()
        if self._closing.is_set():
            raise _Closing


class _Closing(Exception):
    """The feeder is closing."""


def _joined(board: Board) -> bool:
    return board.joined


def _fed_epoch(board: Board) -> int:
    return board.fed_epoch

"""`essp.SharedRecords`: one loader for several training processes of a machine; each batch goes to one of them.

    shared = essp.Records("data/cifar10", batch_size=32).share(processes=2)
    torch.multiprocessing.spawn(train, args=(model, shared), nprocs=2)

    def train(rank, model, shared):
        for epoch in range(10):
            for batch in shared:                     # the batches of an epoch that other processes do not get
                step(model, batch.frames[:, 0], batch.labels)

The process that shares the loader reads the records and writes batches into shared memory (`essp/records/ring.py`).
"""

from __future__ import annotations

import json
import logging
import operator
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import torch
from torch.utils.data import IterableDataset

from essp.api.arguments import bytes_of, function_of, path_of, whole_number
from essp.api.epochs import Batch, Epochs, closed_when_abandoned, iteration_over, refuse_workers, state_of
from essp.records.feeder import Feeder, Span
from essp.records.handover import ENDED, WAIT, Board, Slot, Standing, Status
from essp.records.ring import Address, Ended, Home, Ring
from essp.records.slots import Packed, unpacked
from essp_common.errors import ConfigError, PermanentError
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.position import Position
from essp_common.validation import shown

log = logging.getLogger(__name__)

_MOST_PROCESSES = 1024
_PATIENCE_S = 60.0


class SharedRecords(IterableDataset[Batch]):
    """A loader from which several processes of a machine take batches; `Records.share` makes it.

        shared = essp.Records("data/cifar10", batch_size=32).share(processes=2)
        for process in [Process(target=train, args=(model, shared)) for _ in range(2)]:
            process.start()

    Pass it to forked or spawned processes; in any other process, open it by `SharedRecords(address)`. Each `for` over
    it is an epoch. Each batch goes to one of the processes, so each record is shown once, unless records are drawn with
    replacement. With one process, the order is the same as with `Records`.

    A batch counts as used when its process asks for the next one, or leaves the epoch. If the process dies, another one
    gets the batch. An epoch ends for all processes when all of its batches are used: a `for` that has no more batches
    waits for the batches of other processes. After a process has left an epoch early (`break`), its next `for` waits
    until the epoch ends, or until all processes have left it; the rest of that epoch is dropped. For a process that
    joins later, the epochs before are empty.

    Batches are copies: a loop may keep and modify them.
    """

    def __init__(self, address: str) -> None:
        """Open the loader with this `address`, in any process of the same user and machine.

        Raises `ConfigError` if the process that shared it has closed it or ended.
        """
        self._address = Address.parse(path_of("address", address))
        self._ring: Ring | None = None
        self._about: About | None = None
        self._owner: Owner | None = None
        self._epoch: int | None = None
        self._begun = False
        self._iteration = 0
        self._map: Callable[[Batch], Any] | None = None
        self._opened()

    @classmethod
    def _of(cls, owner: Owner) -> SharedRecords:
        shared = cls(str(owner.address))
        shared._owner = owner
        owner.abandoned = closed_when_abandoned(shared, owner.close)
        return shared

    # --- properties ---

    @property
    def address(self) -> str:
        """The argument of `SharedRecords` in processes that are not children of this one."""
        return str(self._address)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them, and -1 for a record without one."""
        return self._properties().classes

    @property
    def epoch(self) -> int:
        """The current epoch, or between two epochs the next one; from 0."""
        return self._properties().start.epoch if self._epoch is None else self._epoch

    @property
    def damaged(self) -> dict[str, str]:
        """Records that could not be read so far, with the reason. Only in the process that shared the loader."""
        return self._owned("damaged").damaged()

    def __len__(self) -> int:
        """Batches of an epoch, for all processes together."""
        return self._properties().batches

    # --- iterating ---

    def __iter__(self) -> Iterator[Batch]:
        """The batches for this process of the next epoch, or of the rest of the epoch whose state was loaded."""
        refuse_workers()
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        ring = self._joined()
        device = torch.device(self._properties().device)
        self._epoch = epoch = self.epoch + self._begun
        self._begun = True
        self._iteration += 1
        iteration = self._iteration
        used = False
        try:
            while (slot := self._next(ring, epoch)) is not None:
                frames, labels, meta = unpacked(ring.memory_of(slot), slot)
                shown = torch.from_numpy(frames)
                if device.type == "cuda":
                    shown = shown.pin_memory().to(device, non_blocking=True)
                batch = Batch(shown, torch.from_numpy(labels), meta)
                used = True
                yield batch if self._map is None else self._map(batch)
                used = False
                if iteration != self._iteration:
                    raise iteration_over()
            if iteration != self._iteration:
                raise iteration_over()
            if self._begun:  # `set_epoch` was not called meanwhile
                self._epoch, self._begun = epoch + 1, False
        finally:
            if iteration == self._iteration and ring.is_open:
                ring.step(Board.leave, ring.member, used)

    def _next(self, ring: Ring, epoch: int) -> Slot | None:
        """The next batch for this process; None: the epoch is over."""
        since_s = 0.0
        while True:
            if not ring.is_open:
                raise iteration_over()
            answer = ring.take(epoch)
            if isinstance(answer, Slot):
                return answer
            if answer == ENDED:
                self._say_why(ring)
            if answer != WAIT:
                return None
            if not ring.wait_as_member():
                continue
            if not ring.bury_the_dead() and not ring.is_fed and ring.step(_status) == Status.OPEN:
                raise PermanentError(
                    f"process {self._address.process}, which read the records for this shared loader, has died; start "
                    "the training again from its last state"
                )
            since_s = since_s or time.monotonic()
            if time.monotonic() - since_s > _PATIENCE_S:
                since_s = 0.0
                holders = ", ".join(f"process {process}" for process in ring.step(Board.holders))
                log.warning("epoch %d: waiting for the batches of %s", epoch, holders or "the records")

    def map(self, function: Callable[[Batch], Any]) -> Self:
        """Make each `for` of this process give `function(batch)` instead of the batch. Returns this loader."""
        self._map = function_of("function", function)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make the next `for` of this process show this epoch, unless it is the current one anyway."""
        epoch = whole_number("epoch", epoch, 0, MOST_EPOCHS - 1)
        if epoch != self.epoch or self._begun:
            self._epoch, self._begun = epoch, False

    @property
    def batch_sampler(self) -> _BatchSampler:
        """For Lightning, which calls `set_epoch` of the `batch_sampler.sampler` of a data loader: this loader."""
        return _BatchSampler(self)

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """The records of the epoch that are used, including the current batch of this process.

        `epoch`, `clip`, `plan`: as for `Records`; all records before `clip` are used. `used`: spans after `clip` that
        are used, too; they count the records of one rank, which `ranks` names, with the number of ranks. A loader that
        loads the state shows all other records once, also those of the batches that other processes were working on.
        `Records` can load the state, too, and shows the spans of `used` again.
        """
        ring, about = self._opened(), self._properties()
        standing = ring.step(Board.standing, ring.member)
        skips = about.start.skips if standing.epoch == about.start.epoch else []
        index, used = _used(standing, about.size, skips)
        clip, clips = index * about.world_size, about.size * about.world_size
        ranks = [about.rank, about.world_size]
        return {**state_of(standing.epoch, clip, clips, about.plan), "used": used, "ranks": ranks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Call it in the process that shared the loader, before any process takes a batch.

        With several ranks, each has its own state; a state without spans in `used` may be loaded with another number of
        ranks. Raises `ConfigError` for a state of other records.
        """
        owner = self._owned("load_state_dict")
        self._opened()
        owner.load(state)
        self._about, self._epoch, self._begun = None, None, False

    # --- lifecycle ---

    def close(self) -> None:
        """Leave; in the process that shared the loader, end it for all processes. Idempotent."""
        ring, self._ring = self._ring, None
        if ring is not None and ring.is_open:
            ring.leave()
            ring.close()
        if self._owner is not None and self._owner.process == os.getpid():
            self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """The state that another process needs to open the loader."""
        return {"address": self._address, "map": self._map, "epoch": self._epoch, "begun": self._begun}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._address, self._map, self._epoch, self._begun = state.values()
        self._ring = self._about = self._owner = None
        self._iteration = 0

    def _opened(self) -> Ring:
        """The ring, in this process."""
        ring = self._ring
        if ring is None or not ring.is_open:
            try:
                self._ring = ring = Ring(self._address)
            except Ended as error:
                raise ConfigError(
                    f"process {self._address.process} shares no such loader: it has closed the loader or ended, or it "
                    "belongs to another user or container; keep the loader open as long as other processes use it",
                    field="address",
                    code="not_found",
                ) from error
        return ring

    def _joined(self) -> Ring:
        ring = self._opened()
        if ring.member != WAIT:
            return ring
        self._about = None  # the owner may have loaded a state meanwhile
        if ring.join() == WAIT:
            members = ring.step(Board.processes)
            raise ConfigError(
                f"all {len(members)} have joined already (process ids {', '.join(str(pid) for _, pid in members)}); "
                f"call share(processes={len(members) + 1})",
                field="processes",
                code="taken",
            )
        return ring

    def _properties(self) -> About:
        if self._about is None:
            ring = self._opened()
            text = ring.text()
            if ring.step(_status) != Status.OPEN:
                self._say_why(ring)
            self._about = About.parse(text)
        return self._about

    def _say_why(self, ring: Ring) -> NoReturn:
        process = self._address.process
        if ring.step(_status) == Status.CLOSED:
            raise PermanentError(f"process {process}, which shared this loader, has closed it; share it again")
        raise PermanentError(f"process {process} could not read the records of this loader: {ring.text().decode()}")

    def _owned(self, what: str) -> Owner:
        if self._owner is None or self._owner.process != os.getpid():
            raise ConfigError(
                f"`{what}` works only in the process that shared the loader, {self._address.process}",
                code="unsupported",
            )
        return self._owner


class _BatchSampler(NamedTuple):
    sampler: SharedRecords


class Start(NamedTuple):
    """Where the first epoch begins."""

    epoch: int
    place: int
    skips: list[Span]
    """Spans after `place` that are used already, ascending."""


class About(NamedTuple):
    """The properties of the loader that every process needs."""

    classes: tuple[str, ...]
    size: int
    """Records of an epoch, of this rank."""
    batches: int
    rank: int
    world_size: int
    plan: int
    device: str
    start: Start

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def parse(cls, text: bytes) -> About:
        classes, size, batches, rank, world_size, plan, device, (epoch, place, skips) = json.loads(text)
        start = Start(epoch, place, [(begin, end) for begin, end in skips])
        return cls(tuple(classes), size, batches, rank, world_size, plan, device, start)


class Owner:
    """The part of a shared loader in the process that shared it."""

    def __init__(
        self,
        loader: Epochs,
        about: Callable[[Start], About],
        damaged: Callable[[], dict[str, str]],
        processes: int,
        memory: int | str,
    ) -> None:
        """Takes ownership of `loader`. `damaged`: returns the records that it could not read so far, and why."""
        members = whole_number("processes", processes, 1, _MOST_PROCESSES)
        memory_bytes = bytes_of(memory)
        self.process = os.getpid()
        self.loader = loader
        self.damaged = damaged
        self._about = about
        self._about_now = about(Start(0, 0, []))
        self._home = Home(members)
        self._ring = Ring(self._home.address)
        self._begin([])
        self._feeder = Feeder(self._home, self._ring, _Batches(loader, self._about_now), memory_bytes, self._spans)
        self.abandoned: weakref.finalize[..., Any] | None = None

    @property
    def address(self) -> Address:
        return self._home.address

    def load(self, state: Mapping[str, Any]) -> None:
        if self._ring.step(_joined):
            raise ConfigError(
                "processes have taken batches already; share the loader again, and load the state first",
                field="state",
                code="conflict",
            )
        self.loader.load_state_dict(state)
        try:
            skips = [(operator.index(start), operator.index(stop)) for start, stop in state.get("used", ())]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`used` must be spans of an epoch, got {shown(state['used'])}", field="state", code="type"
            ) from error
        places = [place for span in skips for place in span]
        if places != sorted(set(places)) or any(not 0 <= place <= self._about_now.size for place in places):
            raise ConfigError(f"`used` must be spans of an epoch, got {shown(state['used'])}", field="state")
        ranks = [self._about_now.rank, self._about_now.world_size]
        if skips and state.get("ranks", ranks) != ranks:
            raise ConfigError(
                f"`used` counts the records of another rank: `ranks` is {shown(state['ranks'])}, here {ranks}; load it "
                "there, or load a state from the end of an epoch",
                field="state",
                code="conflict",
            )
        self._begin(skips if self.loader.epoch == state["epoch"] else [])

    def close(self) -> None:
        """Idempotent."""
        if self.abandoned is not None:
            self.abandoned.detach()
        self._feeder.close()
        self._home.close()

    def _begin(self, skips: list[Span]) -> None:
        """Begin at the position of the loader."""
        epoch, index = self.loader.epoch, _index(self.loader)
        self._about_now = self._about(Start(epoch, index, skips))
        text = self._about_now.encode()
        self._ring.step(Board.begin, epoch, index, self._home.write(text), len(text))

    def _spans(self, epoch: int) -> list[Span]:
        """The spans of an epoch that are not yet used."""
        start = self._about_now.start
        if epoch != start.epoch:
            return [(0, self._about_now.size)]
        return between([(0, start.place), *start.skips], self._about_now.size)


class _Batches:
    """The batches of a loader, packed. See `essp.records.feeder.Source`."""

    def __init__(self, loader: Epochs, about: About) -> None:
        self._loader = loader
        self._world_size = about.world_size
        self._size = about.size

    def batches(self, epoch: int, span: Span) -> Iterator[tuple[int, Packed]]:
        """The batches of a span, and the index at which each ends."""
        loader = self._loader
        start, stop = span
        if not loader._begins_at(Position(epoch, start)):
            loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "clip": start * self._world_size})
        if loader.position() != (epoch, start):
            return  # too few for a batch
        for batch in loader:
            place = _index(loader)
            if place > stop:  # the state was taken with another batch size
                count = sum(index // self._world_size < stop for index in batch.meta["index"])
                columns = {name: column[:count] for name, column in batch.meta.items()}
                batch = Batch(batch.frames[:count], batch.labels[:count], columns)
            yield min(place, stop), Packed(batch.frames.numpy(), batch.labels.numpy(), batch.meta)
            if stop <= place < self._size:
                return

    def close(self) -> None:
        """End the threads of the loader."""
        self._loader.close()


def _index(loader: Epochs) -> int:
    position = loader.position()
    assert position is not None
    return position.index


def _used(standing: Standing, size: int, skips: list[Span]) -> tuple[int, list[Span]]:
    """The index up to which all records are used, and the used spans after it. `skips`: spans that are not written."""
    unused = list(standing.unused)
    if standing.written is not None:
        unused += between([(0, standing.written), *skips], size)
    if not unused:
        return size, []
    index = unused[0][0]
    return index, between([(0, index), *unused], size)


def between(spans: list[Span], size: int) -> list[Span]:
    """The gaps between `spans`, ascending, within `0..size`."""
    found, at = [], 0
    for start, stop in spans:
        if at < start:
            found.append((at, start))
        at = max(at, stop)
    return [*found, (at, size)] if at < size else found


def _joined(board: Board) -> bool:
    return board.joined


def _status(board: Board) -> Status:
    return board.status

"""`essp.SharedRecords`: one loader for several training processes of a machine, each batch for one of them.

    shared = essp.Records("data/cifar10", batch_size=32).share(processes=2)
    torch.multiprocessing.spawn(train, args=(model, shared), nprocs=2)

    def train(rank, model, shared):
        for epoch in range(10):
            for batch in shared:                     # the batches of an epoch that no other process gets
                step(model, batch.frames[:, 0], batch.labels)

The process that shares reads the records and writes batches into memory that all have (`essp/records/ring.py`).
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
from torch.utils.data import IterableDataset, get_worker_info

from essp.api.arguments import bytes_of, function_of, path_of, whole_number
from essp.api.epochs import ONE_AT_A_TIME, Batch, Epochs, closed_when_abandoned, state_of
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
    """A loader that several processes of a machine take batches from; `Records.share` makes it.

        shared = essp.Records("data/cifar10", batch_size=32).share(processes=2)
        for process in [Process(target=train, args=(model, shared)) for _ in range(2)]:
            process.start()

    It may be handed to processes that are forked or spawned, and `SharedRecords(address)` opens it in any other one.
    Each `for` over it is an epoch, of which each batch comes in one of the processes; so does each record once, without
    replacement. With one process, the order is that of `Records`.

    A batch counts as used when the process that has it asks for the next one, or leaves the epoch. If the process dies,
    the batch goes to another one. An epoch is over for all when all of its batches are used: the last `for` to run out
    of batches waits for those that others still have. A process that leaves an epoch early (`break`) waits with its
    next `for` until that epoch is over, or until all have left it, and then what is left of it is dropped. Epochs that
    were over before a process came are empty for it.

    Batches are copies: a loop may keep them and write to them.
    """

    def __init__(self, address: str) -> None:
        """Open the loader that has this `address`, in any process of the same user and machine.

        Raises `ConfigError` if the process that shared it has closed it, or is gone.
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

    # --- what it has ---

    @property
    def address(self) -> str:
        """For `SharedRecords(address)`, in processes that are not children of this one."""
        return str(self._address)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is a position in them, and -1 that of a record without one."""
        return self._told().classes

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` shows, or that is being shown; from 0."""
        return self._told().start.epoch if self._epoch is None else self._epoch

    @property
    def damaged(self) -> dict[str, str]:
        """Records that could not be read so far, and why. Only where the loader was shared: it reads them."""
        return self._owned("damaged").damaged()

    def __len__(self) -> int:
        """Batches of an epoch, of all processes together."""
        return self._told().batches

    # --- iterating ---

    def __iter__(self) -> Iterator[Batch]:
        """What this process gets of the next epoch, or of the rest of the one whose state was loaded."""
        if get_worker_info() is not None:
            raise ConfigError("a loader cannot be used in worker processes; give DataLoader num_workers=0")
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        ring = self._joined()
        device = torch.device(self._told().device)
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
                    raise ConfigError(ONE_AT_A_TIME)
            if iteration != self._iteration:
                raise ConfigError(ONE_AT_A_TIME)
            if self._begun:  # no epoch was set meanwhile
                self._epoch, self._begun = epoch + 1, False
        finally:
            if iteration == self._iteration and ring.is_open:
                ring.step(Board.leave, ring.member, used)

    def _next(self, ring: Ring, epoch: int) -> Slot | None:
        """The next batch for this process; None: the epoch is over."""
        since_s = 0.0
        while True:
            if not ring.is_open:
                raise ConfigError(ONE_AT_A_TIME)
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
                    f"process {self._address.process}, which read the records for this shared loader, is gone; start "
                    "the training again from its last state"
                )
            since_s = since_s or time.monotonic()
            if time.monotonic() - since_s > _PATIENCE_S:
                since_s = 0.0
                holders = ", ".join(f"process {process}" for process in ring.step(Board.holders))
                log.warning("epoch %d: waiting for the batches of %s", epoch, holders or "the records")

    def map(self, function: Callable[[Batch], Any]) -> Self:
        """Have each `for` of this process give `function(batch)` in place of the batch, and return this loader."""
        self._map = function_of("function", function)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Have the next `for` of this process show this epoch, unless it is the present one anyway."""
        epoch = whole_number("epoch", epoch, 0, MOST_EPOCHS - 1)
        if epoch != self.epoch or self._begun:
            self._epoch, self._begun = epoch, False

    @property
    def batch_sampler(self) -> _BatchSampler:
        """Lightning tells the epoch to the `batch_sampler.sampler` of what it iterates over: that is the loader."""
        return _BatchSampler(self)

    # --- where it is ---

    def state_dict(self) -> dict[str, Any]:
        """Which records of the epoch are used: by the processes that asked for their next batch, or left; and the batch
        that this process has in hand.

        `epoch`, `clip`, `plan`: as those of `Records`; up to `clip`, all are used. `used`: spans beyond that are, too.
        A resumed `share` shows everything else, once: the batches that others had in hand when this was called come
        again. `Records` can load the state as well, and shows the spans of `used` again.
        """
        ring, about = self._opened(), self._told()
        standing = ring.step(Board.standing, ring.member)
        skips = about.start.skips if standing.epoch == about.start.epoch else []
        index, used = _used(standing, about.size, skips)
        clip, clips = index * about.world_size, about.size * about.world_size
        return {**state_of(standing.epoch, clip, clips, about.plan), "used": used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. In the process that shared the loader, before any process has taken a batch.

        With several ranks, each has a state of its own. Raises `ConfigError` for the state of other records.
        """
        owner = self._owned("load_state_dict")
        self._opened()
        owner.load(state)
        self._about, self._epoch, self._begun = None, None, False

    # --- its life ---

    def close(self) -> None:
        """Leave; where the loader was shared, end it for all. Idempotent."""
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
        """For another process."""
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
                    f"the loader that process {self._address.process} shared is not there: it was closed, or the "
                    "process has ended, or is another user's or another container's; keep it open as long as others "
                    "use it"
                ) from error
        return ring

    def _joined(self) -> Ring:
        ring = self._opened()
        if ring.member != WAIT:
            return ring
        self._about = None  # a state may have been loaded meanwhile
        if ring.join() == WAIT:
            members = ring.step(Board.processes)
            raise ConfigError(
                f"processes: {len(members)} have joined already ({', '.join(str(pid) for _, pid in members)}), which "
                f"is as many as may; share(processes={len(members) + 1})"
            )
        return ring

    def _told(self) -> About:
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
            raise ConfigError(f"{what}: only in the process that shared the loader, {self._address.process}")
        return self._owner


class _BatchSampler(NamedTuple):
    sampler: SharedRecords


class Start(NamedTuple):
    """Where the first epoch begins."""

    epoch: int
    place: int
    skips: list[Span]
    """What is used beyond that, ascending."""


class About(NamedTuple):
    """What every process knows of the loader."""

    classes: tuple[str, ...]
    size: int
    """Records of an epoch, of this rank."""
    batches: int
    world_size: int
    plan: int
    device: str
    start: Start

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def parse(cls, text: bytes) -> About:
        classes, size, batches, world_size, plan, device, (epoch, place, skips) = json.loads(text)
        start = Start(epoch, place, [(begin, end) for begin, end in skips])
        return cls(tuple(classes), size, batches, world_size, plan, device, start)


class Owner:
    """What the process that shared the loader has of it."""

    def __init__(
        self,
        loader: Epochs,
        about: Callable[[Start], About],
        damaged: Callable[[], dict[str, str]],
        processes: int,
        memory: int | str,
    ) -> None:
        """Takes over `loader`. `damaged`: what it could not read so far, and why."""
        members = whole_number("processes", processes, 1, _MOST_PROCESSES)
        memory_bytes = bytes_of(memory)
        self.process = os.getpid()
        self.loader = loader
        self.damaged = damaged
        self._about = about
        self._told = about(Start(0, 0, []))
        self._home = Home(members)
        self._ring = Ring(self._home.address)
        self._begin([])
        self._feeder = Feeder(self._home, self._ring, _Batches(loader, self._told), memory_bytes, self._spans)
        self.abandoned: weakref.finalize[..., Any] | None = None

    @property
    def address(self) -> Address:
        return self._home.address

    def load(self, state: Mapping[str, Any]) -> None:
        if self._ring.step(_joined):
            raise ConfigError("state: load it before any process takes batches; share the loader again")
        self.loader.load_state_dict(state)
        try:
            skips = [(operator.index(start), operator.index(stop)) for start, stop in state.get("used", ())]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"state: {shown(state['used'])} are no spans of an epoch") from error
        places = [place for span in skips for place in span]
        if places != sorted(set(places)) or any(not 0 <= place <= self._told.size for place in places):
            raise ConfigError(f"state: {shown(state['used'])} are no spans of an epoch")
        self._begin(skips if self.loader.epoch == state["epoch"] else [])

    def close(self) -> None:
        """Idempotent."""
        if self.abandoned is not None:
            self.abandoned.detach()
        self._feeder.close()
        self._home.close()

    def _begin(self, skips: list[Span]) -> None:
        """Where the loader is."""
        epoch, index = self.loader.epoch, _index(self.loader)
        self._told = self._about(Start(epoch, index, skips))
        text = self._told.encode()
        self._ring.step(Board.begin, epoch, index, self._home.write(text), len(text))

    def _spans(self, epoch: int) -> list[Span]:
        """What is to come of an epoch."""
        start = self._told.start
        if epoch != start.epoch:
            return [(0, self._told.size)]
        return between([(0, start.place), *start.skips], self._told.size)


class _Batches:
    """The batches of a loader, packed. See `essp.records.feeder.Source`."""

    def __init__(self, loader: Epochs, about: About) -> None:
        self._loader = loader
        self._world_size = about.world_size
        self._size = about.size

    def batches(self, epoch: int, span: Span) -> Iterator[tuple[int, Packed]]:
        """Those between start and stop; and where each ends."""
        loader = self._loader
        start, stop = span
        if not loader._begins_at(Position(epoch, start)):
            loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "clip": start * self._world_size})
        if loader.position() != (epoch, start):
            return  # too few for a batch
        for batch in loader:
            place = _index(loader)
            if place > stop:  # the state is one of other batches
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
    """Up to which index all is used, and the spans beyond that are. `skips`: those that will not be written."""
    unused = list(standing.unused)
    if standing.written is not None:
        unused += between([(0, standing.written), *skips], size)
    if not unused:
        return size, []
    index = unused[0][0]
    return index, between([(0, index), *unused], size)


def between(spans: list[Span], size: int) -> list[Span]:
    """What `spans`, ascending, leave of `0..size`."""
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

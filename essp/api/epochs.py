"""What a loader is to a training loop: epochs of batches, one after the other, and two integers that say where it is.

`Loader` has clips of videos, `Records` has records; both are iterated over, saved and resumed alike, and frameworks see
no difference.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Never, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from essp.api.arguments import function_of, whole_number
from essp.api.targets import Targets
from essp_common.errors import ConfigError, EsspError, PermanentError
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.position import Position
from essp_common.runtime.forks import Mutex
from essp_common.runtime.threads import guarded
from essp_common.runtime.unbroken import unbroken
from essp_common.validation import shown
from essp_engine.loading.rendezvous import Rendezvous

T = TypeVar("T")

ONE_AT_A_TIME = (
    "this iteration is over: another one over the same loader has begun, or the loader was closed or set to another "
    "place, or this is a fork of the process that began it; have one at a time, and begin a new one"
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Clips that a loop takes together: `frames`, `labels` and `meta`; its length is their number B.

    frames: `(B, T, H, W, C)` on the loader's device: uint8, RGB, as decoded, or one channel of grey levels
        (`Clip.pixels`); of other features `(B, T', H, W, C)`, uint8 for networks, and float32 for descriptors.
    labels: `(B,)` int64 on the CPU: class ids, positions in `Loader.classes`.
    meta: B values each: `video` (its id), `uri`, `class_name`, `split` and `group` as in the catalog, `first_frame` and
        `last_frame` in the file, `epoch`, and `index`, that of the clip in its epoch. Then the further columns of the
        source that the catalog was built from, by their names (None where a video has no value; a column that is called
        like one of these has `source_` before its name).
    targets: several labels, spans and values of the very frames of each clip, if the catalog has any.

    For example:

        batch = next(iter(loader))
        batch.frames.shape      # (B, T, H, W, C), uint8
        batch.labels            # (B,) int64, positions in loader.classes
        batch.meta["video"][0]  # what the catalog says of the first clip's video
        batch = batch.to("cuda")
    """

    frames: Tensor
    labels: Tensor
    meta: dict[str, list[Any]]

    targets: Targets | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        def told(tensor: Tensor) -> str:
            return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"

        parts = [f"frames: {told(self.frames)}", f"labels: {told(self.labels)}", f"meta: {', '.join(self.meta)}"]
        return f"<Batch of {len(self)}; {'; '.join(parts)}{'' if self.targets is None else '; targets'}>"

    def to(self, device: torch.device | str, **options: Any) -> Batch:
        """The batch with frames, labels and targets on `device`. `options`: those of `Tensor.to`."""
        targets = None if self.targets is None else self.targets.to(device, **options)
        frames, labels = self.frames.to(device, **options), self.labels.to(device, **options)
        return replace(self, frames=frames, labels=labels, targets=targets)


def _collated(batches: Sequence[Batch], **_: Any) -> Never:
    raise ConfigError("a loader gives whole batches, which DataLoader cannot batch again: give it batch_size=None")


default_collate_fn_map[Batch] = _collated


class Epochs(IterableDataset[Batch]):
    """Batches in epochs: each `for` over it is one, in a new order."""

    def __init__(self, ranks: Rendezvous, drop_last: bool) -> None:
        self._ranks = ranks
        self._drop_last = drop_last
        self._late = False
        """It begins with the next epoch of its source, whichever that is."""
        self._epoch = 0
        self._clips_done = 0
        """Of the epoch, by all ranks."""
        self._begun = False
        """An iteration over the present epoch has begun, so the next one is for the next epoch."""
        self._resuming = False
        """A state was loaded, and nothing has been shown since."""
        self._ahead = 0
        """By how much the epoch is ahead of the one that Lightning counts."""
        self._begun_by_state = False
        """The epoch is the one of the state that was loaded, which was at its beginning."""
        self._map: Callable[[Batch], Any] | None = None
        self._iteration = object()
        """Another one once it is over."""
        self._begun_last = self._iteration
        """The iteration that began last."""
        self._changing = Mutex(reentrant=True)
        """Held while an iteration ends, and while what it needs begins: who ends it then waits, and takes that."""

    @property
    @abstractmethod
    def _clips(self) -> int:
        """Of an epoch, of this rank."""

    @property
    @abstractmethod
    def _batch_size(self) -> int:
        """Of this rank."""

    @property
    @abstractmethod
    def _plan(self) -> int:
        """Differs where the clips, or their order, do."""

    @property
    def _clips_of_all(self) -> int:
        """Of an epoch, of all ranks."""
        return self._clips * self._ranks.world_size

    @property
    def _keeps_step(self) -> bool:
        """There are other ranks, each of which has as many batches: they wait for each other at each one."""
        return self._ranks.world_size > 1

    @abstractmethod
    def _epoch_from(self, start: Position | None) -> Iterator[tuple[Batch | None, int]]:
        """The batches of the epoch from there on, and how many clips of this rank are over with each; None: nothing of
        it can be decoded. `start` None: see `_late`."""

    @abstractmethod
    def _take(self) -> Callable[[], None]:
        """How to end the processes and threads of this loader, of which it has none from now on."""

    # --- iterating ---

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` shows, or that is being shown; from 0."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of an epoch, of this rank."""
        return self._clips // self._batch_size if self._drop_last else -(-self._clips // self._batch_size)

    def _refuse_empty_epochs(self) -> None:
        """Raises `ConfigError` if no epoch has a batch: a loop would train on nothing, and not notice."""
        if not len(self):
            raise ConfigError(
                f"drop_last: an epoch has {self._clips} clips, which are no whole batch of {self._batch_size}; lower "
                "batch_size, or use drop_last=False"
            )

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or what is left of the one whose state was loaded."""
        if get_worker_info() is not None:
            raise ConfigError("a loader cannot be used in worker processes; give DataLoader num_workers=0")
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        # An epoch begins with its first batch: frameworks make iterators that they never ask for one.
        if self._begun:
            self._epoch, self._clips_done = self._epoch + 1, 0
        self._begun, self._resuming = True, False
        iteration = self._iteration = self._begun_last = object()
        whole, taker = False, threading.get_ident()
        try:
            batches = self._epoch_from(self.position())
            for batch, done in self._going_on(self._in_step(batches) if self._keeps_step else batches):
                self._clips_done = done * self._ranks.world_size
                if batch is not None:
                    yield batch if self._map is None else self._map(batch)
                    taker = threading.get_ident()
            whole = True
            self._epoch, self._clips_done, self._begun = self._epoch + 1, 0, False
        finally:
            if not whole:
                if threading.get_ident() == taker or sys.is_finalizing():
                    unbroken(lambda: self._end(iteration))
                else:
                    _in_a_thread(lambda: self._end(iteration))

    def _going_on(self, batches: Iterator[tuple[Batch | None, int]]) -> Iterator[tuple[Batch | None, int]]:
        """`batches`, as long as this is the iteration that the loader is in."""
        mine = self._iteration, os.getpid()
        while (self._iteration, os.getpid()) == mine:
            try:
                item = next(batches, None)
            except Exception:
                if self._iteration is mine[0]:
                    raise
                break  # what it waited for was ended
            if self._iteration is not mine[0]:
                break
            if item is None:
                return
            yield item
        raise ConfigError(ONE_AT_A_TIME)

    def _begin(self, make: Callable[[], T]) -> T:
        """Have that made which the iteration needs of processes and threads.

        Raises `EsspError` if the iteration is over meanwhile; then nothing is left.
        """

        def begin() -> T | None:
            made = None
            with self._changing.held:
                if not self._over:
                    made = make()
                end = self._take() if self._over else nothing
            end()
            return made

        made = unbroken(begin)
        if made is None or self._over:
            raise EsspError("this loop was closed while it began")
        return made

    @property
    def _over(self) -> bool:
        """The iteration that began last is over."""
        return self._iteration is not self._begun_last

    def _in_step(self, batches: Iterator[tuple[Batch | None, int]]) -> Iterator[tuple[Batch, int]]:
        """As many batches as the other ranks have, which wait at each step: where there is nothing to show, the batch
        before comes again, or the first one earlier."""
        shown: Batch | None = None
        missing: list[int] = []
        for batch, done in batches:
            shown = shown if batch is None else batch
            missing.append(done)
            while missing and shown is not None:
                yield shown, missing.pop(0)
        if missing:
            raise PermanentError(
                f"rank {self._ranks.rank} can decode nothing of epoch {self._epoch} from clip {self._clips_done} on, "
                "and the other ranks would wait for its batches; the log says what is damaged: mend it, or leave it out"
            )

    def map(self, function: Callable[[Batch], Any]) -> Self:
        """Have each `for` give `function(batch)` in place of the batch, and return this loader.

        For frameworks that want dictionaries: `loader.map(lambda batch: {"pixel_values": batch.frames, "labels":
        batch.labels})`. It runs in the thread of the loop, so what takes long is better done by `transform`.
        """
        self._map = function_of("function", function)
        return self

    def close(self) -> None:
        """End the processes and threads of this loader, but for those that it shares. It can be iterated over again.
        Idempotent."""
        unbroken(self._end)

    def _drop(self) -> None:
        """End the processes and threads of this loader, and go on with the iteration."""
        unbroken(lambda: self._end(self._begun_last, goes_on=True))

    def _end(self, iteration: object = None, *, goes_on: bool = False) -> None:
        """End the processes and threads of this loader, and the iteration that it is in, unless that goes on. If one is
        given, only those of that one: who ended it earlier ends what it had."""
        with self._changing.held:
            if iteration is not None and iteration is not self._iteration:
                return
            if not goes_on:
                self._iteration = object()
            end = self._take()
        end()

    def position(self) -> Position | None:
        """Where the next batch of this rank begins: epoch and clip; None: with the next epoch of a job that runs."""
        return None if self._late else Position(self._epoch, self._clips_done // self._ranks.world_size)

    def _begins_at(self, position: Position) -> bool:
        """Whether the next `for` begins there: not with the epoch after one that was left."""
        return not self._begun and self.position() == position

    def set_epoch(self, epoch: int) -> None:
        """Have the next `for` show this epoch, from its beginning, unless it is the present one anyway. It ends an
        iteration that has begun.

        Raises `ConfigError` where that would lose the place of a state that was just loaded.
        """
        epoch = whole_number("epoch", epoch, 0, MOST_EPOCHS - 1)
        if self._resuming and epoch != self._epoch:
            raise ConfigError(
                f"epoch: set_epoch({epoch}) would lose the state that was loaded, which goes on in epoch "
                f"{self._epoch}; begin a loop of your own there (range(loader.epoch, epochs)), give accelerate the "
                "loader itself and not a DataLoader of it, and resume the Trainer of Hugging Face, which counts steps, "
                "with the batch_size and the ranks that it was saved with"
            )
        if epoch != self._epoch or self._begun or self._late:
            self.close()
            self._late = False
            self._epoch, self._clips_done, self._begun = epoch, 0, False

    def _told_epoch(self, epoch: int) -> None:
        """Have the next `for` show what Lightning, or Fabric, calls this epoch.

        It counts an epoch that `max_steps` ends as a whole one, and Fabric counts from 0 again; the loader has its
        place from the state that was loaded, and from there on both count alike. After `max_steps` at the end of an
        epoch, Lightning takes one batch of the next one and calls that an epoch, too: the loader goes on in it.
        """
        one_batch = self._batch_size * self._ranks.world_size
        if self._begun_by_state and self._begun and 0 < self._clips_done <= one_batch < self._clips_of_all:
            self.close()
            self._begun, self._resuming = False, True
        self._begun_by_state = self._begun_by_state and self._resuming and not self._clips_done
        if self._resuming:
            self._ahead = self._epoch - epoch
        self.set_epoch(epoch + self._ahead)

    @property
    def batch_sampler(self) -> _BatchSampler:
        """Lightning tells the epoch to the `batch_sampler.sampler` of what it iterates over."""
        return _BatchSampler(_Sampler(self._told_epoch))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- where it is ---

    def state_dict(self) -> dict[str, int]:
        """Where the loop is, the batch in hand included: two integers, and one that says of which plan they are.

        `epoch`: counts from 0. `clip`: how many clips of that epoch all ranks have taken; after the last one, the state
        is that of the next epoch. Every rank has the same state.
        """
        return state_of(self._epoch, self._clips_done, self._clips_of_all, self._plan)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken, on this or another number of ranks; after the last batch of an epoch, with the
        next epoch.

        Raises `ConfigError` for the state of a loader whose clips are not the same ones.
        """
        try:
            epoch, clip, plan = (operator.index(state[name]) for name in ("epoch", "clip", "plan"))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"state: {shown(state)} is no state of a loader") from error
        if plan != self._plan:
            raise ConfigError(
                "state: it is of other clips; catalog, split, clip, seed and sampling have to be those that it was "
                "taken with"
            )
        ranks = self._ranks.world_size
        most = (self._clips + 1) * ranks - 1  # so many ranks may leave some out
        if not 0 <= epoch < MOST_EPOCHS or not 0 <= clip <= most:
            raise ConfigError(f"state: there is no clip {clip} of epoch {epoch}")
        if self._clips * ranks - clip < (self._batch_size if self._drop_last else 1) * ranks:
            epoch, clip = epoch + 1, 0
        if clip % ranks:
            raise ConfigError(
                f"state: {clip} clips are done, which {ranks} ranks cannot share; use a number of ranks that divides it"
            )
        self.close()
        self._epoch, self._clips_done, self._begun, self._resuming = epoch, clip, False, True
        self._late, self._begun_by_state = False, not clip


def nothing() -> None:
    """There is nothing to end."""


class _Sampler(NamedTuple):
    set_epoch: Callable[[int], None]
    """What Lightning calls with the epoch that it counts."""


class _BatchSampler(NamedTuple):
    sampler: _Sampler


def state_of(epoch: int, clip: int, clips: int, plan: int) -> dict[str, int]:
    """Of a loop that is over with `clip` of the `clips` of an epoch. With all of them it is in the next one: another
    number of ranks may have more clips an epoch, or fewer."""
    if clip >= clips:
        epoch, clip = epoch + 1, 0
    return {"epoch": epoch, "clip": clip, "plan": plan}


def closed_when_abandoned(
    loader: IterableDataset[Batch], close: Callable[[], None]
) -> weakref.finalize[[Callable[[], None]], IterableDataset[Batch]]:
    """Have `close` called when nobody holds the loader any more, but not at the end of the process."""
    finalizer = weakref.finalize(loader, _in_a_thread, close)
    finalizer.atexit = False
    return finalizer


def _in_a_thread(close: Callable[[], None]) -> None:
    """The garbage collector may run in a thread that `close` waits for."""
    guarded("essp-loader-close", close).start()

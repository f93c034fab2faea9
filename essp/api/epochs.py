"""The iteration over a loader: epochs of batches, and a position of two integers that is saved and loaded.

`Loader` shows clips of videos, and `Records` shows records. Both are iterated over, saved and resumed in the same way,
and frameworks see no difference.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Never, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from essp.api.arguments import function_of, whole_number
from essp.api.targets import BatchTargets
from essp_common.errors import ConfigError, EsspError, PermanentError
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.position import Position
from essp_common.runtime.forks import Mutex
from essp_common.runtime.threads import guarded
from essp_common.runtime.unbroken import unbroken
from essp_common.validation import shown
from essp_engine.loading.rendezvous import Rendezvous

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of B clips: `frames`, `labels`, `meta`, `targets` and `text`; `len(batch)` is B.

    frames: `(B, T, H, W, C)` on the loader's device: uint8, RGB, as decoded, or one channel of grey levels, uint8 or
        uint16 (`Clip.pixels`). With a clip for each view of an event: a dictionary of such tensors, by view. With
        `Clip(max_pixels=...)`: a list of B tensors `(T, H, W, C)`, which may differ in height and width. Other features
        are `(B, T', H, W, C)`, uint8 for networks, and float32 for descriptors.
    labels: `(B,)` int64 on the CPU: class ids, which are indices into `Loader.classes`.
    meta: lists of B values. `video` (its id; of several views, the first one's), `uri`, `class_name`, `split` and
        `group`: as in the catalog; `first_frame` and `last_frame`: in the file; `times_s`: only for clips whose frames
        are chosen by time, a list of T seconds of the file at which they appear; `epoch`; `index`: of the clip in its
        epoch; for several views also `event`, and by view `uris` and `frame_numbers` (in its file). Then the other
        columns of the source of the catalog, by their names: None for a video without a value; `source_` is added to a
        name that is one of those above.
    targets: labels, spans and values for the frames of each clip, if the catalog has any.
    text: for each column of `Targets.text`, a list of B strings, or with `pick="all"` of B lists of strings. A clip
        whose video has no text has None, or an empty list.

    For example:

        batch = next(iter(loader))
        batch.frames.shape      # (B, T, H, W, C), uint8
        batch.labels            # (B,) int64, indices into loader.classes
        batch.meta["video"][0]  # id of the first clip's video
        batch = batch.to("cuda")
    """

    frames: Any
    labels: Tensor
    meta: dict[str, list[Any]]

    targets: BatchTargets | None = None
    text: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        def described(tensor: Tensor) -> str:
            return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"

        if isinstance(self.frames, list):
            sizes = ", ".join("x".join(map(str, clip.shape[1:3])) for clip in self.frames)
            tensors = f"frames: {len(self.frames)} tensors like {described(self.frames[0])}, of {sizes}"
        else:
            by_view = self.frames if isinstance(self.frames, dict) else {"frames": self.frames}
            tensors = "; ".join(f"{name}: {described(frames)}" for name, frames in by_view.items())
        tensors += f"; labels: {described(self.labels)}"
        targets = "" if self.targets is None else "; targets"
        text = f"; text: {', '.join(self.text)}" if self.text else ""
        return f"<Batch of {len(self)}; {tensors}; meta: {', '.join(self.meta)}{targets}{text}>"

    def to(self, device: torch.device | str, **options: Any) -> Batch:
        """The batch with frames, labels and targets on `device`. `options`: as for `Tensor.to`."""
        targets = None if self.targets is None else self.targets.to(device, **options)
        frames: Any
        if isinstance(self.frames, list):
            frames = [clip.to(device, **options) for clip in self.frames]
        elif isinstance(self.frames, dict):
            frames = {view: own.to(device, **options) for view, own in self.frames.items()}
        else:
            frames = self.frames.to(device, **options)
        return replace(self, frames=frames, labels=self.labels.to(device, **options), targets=targets)


def _collated(batches: Sequence[Batch], **_: Any) -> Never:
    raise ConfigError(
        "a loader gives whole batches, which DataLoader cannot batch again; give it batch_size=None",
        field="batch_size",
        code="conflict",
    )


default_collate_fn_map[Batch] = _collated


def refuse_workers() -> None:
    """Raises `ConfigError` in a worker process of a `DataLoader`."""
    if get_worker_info() is not None:
        raise ConfigError(
            "a loader cannot be used in worker processes; give DataLoader num_workers=0",
            field="num_workers",
            code="unsupported",
        )


def iteration_over() -> ConfigError:
    """The error of an iteration that was ended by another use of its loader."""
    return ConfigError(
        "this iteration is over: another one over the same loader has begun, or the loader was closed or set to "
        "another position, or this is a fork of the process that began it; begin a new iteration, and have only one at "
        "a time",
        code="conflict",
    )


class Epochs(IterableDataset[Batch]):
    """Batches in epochs: each `for` over it is one epoch, in a new order."""

    def __init__(self, ranks: Rendezvous, drop_last: bool) -> None:
        self._ranks = ranks
        self._drop_last = drop_last
        self._late = False
        """It begins with the next epoch of its source, whatever its number."""
        self._epoch = 0
        self._clips_done = 0
        """Clips of the epoch that are done, of all ranks."""
        self._begun = False
        """An iteration over the current epoch has begun, so the next one shows the next epoch."""
        self._resuming = False
        """A state was loaded, and no batch has been shown since."""
        self._ahead = 0
        """The epoch minus the epoch that Lightning counts."""
        self._begun_by_state = False
        """A state at the beginning of an epoch was loaded, and this epoch is still the current one."""
        self._map: Callable[[Batch], Any] | None = None
        self._iteration = object()
        """The current iteration; replaced when it ends."""
        self._begun_last = self._iteration
        """The last iteration that began."""
        self._changing = Mutex(reentrant=True)
        """Held while an iteration ends, and while its processes and threads start: a thread that ends the iteration
        meanwhile waits, and then ends these, too."""

    @property
    @abstractmethod
    def _clips(self) -> int:
        """Clips of an epoch, of this rank."""

    @property
    @abstractmethod
    def _batch_size(self) -> int:
        """Clips of a batch, of this rank."""

    @property
    @abstractmethod
    def _plan(self) -> int:
        """A digest of the clips and their order."""

    @property
    def _clips_of_all(self) -> int:
        """Clips of an epoch, of all ranks."""
        return self._clips * self._ranks.world_size

    @property
    def _keeps_step(self) -> bool:
        """Whether other ranks wait at each batch, so that each rank needs the same number of batches."""
        return self._ranks.world_size > 1

    @abstractmethod
    def _epoch_from(self, start: Position | None) -> Iterator[tuple[Batch | None, int]]:
        """The batches of the epoch from `start` on (None: see `_late`), each with the number of clips of this rank that
        are done with it. None stands for a batch without any clip that can be decoded."""

    @abstractmethod
    def _take(self) -> Callable[[], None]:
        """Give up the processes and threads of this loader; returns the function that ends them."""

    # --- iterating ---

    @property
    def epoch(self) -> int:
        """The current epoch, or between two epochs the next one; from 0."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of an epoch, of this rank."""
        return self._clips // self._batch_size if self._drop_last else -(-self._clips // self._batch_size)

    def _batch_end(self, begin: int) -> int:
        """The clip after the last one of the batch that begins at clip `begin` of the current epoch, of this rank."""
        return min(self._clips, begin + self._batch_size)

    def _refuse_empty_epochs(self) -> None:
        """Raises `ConfigError` if an epoch has no batch: a loop would train on nothing, and not notice."""
        if not self._clips or (self._drop_last and self._clips < self._batch_size):
            raise ConfigError(
                f"an epoch has {self._clips} clips, less than a batch of {self._batch_size}; lower batch_size, or use "
                "drop_last=False",
                field="drop_last",
                code="conflict",
            )

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or of the rest of the epoch whose state was loaded."""
        refuse_workers()
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        # An epoch begins with its first batch: frameworks make iterators from which they never take a batch.
        if self._begun:
            self._epoch, self._clips_done = self._epoch + 1, 0
        self._begun, self._resuming = True, False
        iteration = self._iteration = self._begun_last = object()
        whole, taker = False, threading.get_ident()
        try:
            batches = self._epoch_from(self.position())
            for batch, done in self._while_current(self._in_step(batches) if self._keeps_step else batches):
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

    def _while_current(self, batches: Iterator[tuple[Batch | None, int]]) -> Iterator[tuple[Batch | None, int]]:
        """`batches`, as long as this is the current iteration. Raises `ConfigError` when it no longer is."""
        mine = self._iteration, os.getpid()
        while (self._iteration, os.getpid()) == mine:
            try:
                item = next(batches, None)
            except Exception:
                if self._iteration is mine[0]:
                    raise
                break  # another thread ended the source of the batches
            if self._iteration is not mine[0]:
                break
            if item is None:
                return
            yield item
        raise iteration_over()

    def _begin(self, make: Callable[[], T]) -> T:
        """Start the processes and threads of the iteration by `make`, and return its result.

        Raises `EsspError` if the iteration ends meanwhile; its processes and threads are ended then.
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
        """Whether the last iteration is over."""
        return self._iteration is not self._begun_last

    def _in_step(self, batches: Iterator[tuple[Batch | None, int]]) -> Iterator[tuple[Batch, int]]:
        """As many batches as the other ranks have, which wait at each step. If nothing of a batch can be decoded, the
        batch before is repeated, or at the beginning the first batch is shown earlier."""
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
                "and the other ranks would wait for its batches; the log names the damaged files: repair or remove them"
            )

    def map(self, function: Callable[[Batch], Any]) -> Self:
        """Make each `for` give `function(batch)` instead of the batch. Returns this loader.

        For frameworks that need dictionaries: `loader.map(lambda batch: {"pixel_values": batch.frames, "labels":
        batch.labels})`. The function runs in the thread of the loop; use `transform` for expensive work.
        """
        self._map = function_of("function", function)
        return self

    def close(self) -> None:
        """End the processes and threads of this loader, except those that other loops share. The loader can be iterated
        over again. Idempotent."""
        unbroken(self._end)

    def _drop(self) -> None:
        """End the processes and threads of this loader, but not the current iteration."""
        unbroken(lambda: self._end(self._begun_last, keep_iteration=True))

    def _end(self, iteration: object = None, *, keep_iteration: bool = False) -> None:
        """End the processes and threads of this loader, and unless `keep_iteration` the current iteration. With
        `iteration`, only if it is still the current one."""
        with self._changing.held:
            if iteration is not None and iteration is not self._iteration:
                return
            if not keep_iteration:
                self._iteration = object()
            end = self._take()
        end()

    def position(self) -> Position | None:
        """Epoch and clip at which the next batch of this rank begins; None: with the next epoch of a running job."""
        return None if self._late else Position(self._epoch, self._clips_done // self._ranks.world_size)

    def _begins_at(self, position: Position) -> bool:
        """Whether the next `for` begins at this position, and not with the next epoch."""
        return not self._begun and self.position() == position

    def _continue(self) -> None:
        """Make the next `for` show the rest of an epoch that was begun, and not the next epoch."""
        if self._begun:
            self.load_state_dict(self.state_dict())

    def _next_epoch(self) -> None:
        """Leave an epoch that was begun and not finished, as the next `for` would."""
        if self._begun:
            self.set_epoch(self._epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `for` show this epoch from its beginning, unless it is the current one anyway. This ends an
        iteration that has begun.

        Raises `ConfigError` if a state was just loaded and this would lose its position.
        """
        epoch = whole_number("epoch", epoch, 0, MOST_EPOCHS - 1)
        if self._resuming and epoch != self._epoch:
            raise ConfigError(
                f"set_epoch({epoch}) would lose the loaded state, which continues in epoch {self._epoch}; begin your "
                "own loop there (range(loader.epoch, epochs)); give accelerate the loader, not a DataLoader of it; "
                "resume the Trainer of Hugging Face, which counts steps, with the batch_size and number of ranks of "
                "the saved state",
                field="epoch",
                code="conflict",
            )
        if epoch != self._epoch or self._begun or self._late:
            self.close()
            self._late = False
            self._epoch, self._clips_done, self._begun = epoch, 0, False

    def _set_epoch_of_lightning(self, epoch: int) -> None:
        """Make the next `for` show the epoch to which Lightning, or Fabric, gives this number.

        Lightning counts an epoch that `max_steps` ends early as a whole one, and Fabric counts from 0 after a restart.
        The loader takes its position from the loaded state, and keeps the difference from then on. If `max_steps` ends
        with an epoch, Lightning takes one more batch, of the next epoch, and counts that as an epoch, too: the loader
        continues in that epoch.
        """
        one_batch = self._batch_end(0) * self._ranks.world_size
        if self._begun_by_state and self._begun and 0 < self._clips_done <= one_batch < self._clips_of_all:
            self.close()
            self._begun, self._resuming = False, True
        self._begun_by_state = self._begun_by_state and self._resuming and not self._clips_done
        if self._resuming:
            self._ahead = self._epoch - epoch
        self.set_epoch(epoch + self._ahead)

    @property
    def batch_sampler(self) -> _BatchSampler:
        """For Lightning, which calls `set_epoch` of the `batch_sampler.sampler` of a data loader."""
        return _BatchSampler(_Sampler(self._set_epoch_of_lightning))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- state ---

    def state_dict(self) -> dict[str, int]:
        """The position of the loop, after the current batch, as integers.

        `epoch`: from 0. `clip`: clips of the epoch that all ranks together have taken; after the last one, the state
        names the next epoch. `plan`: digest of the clips and their order. Every rank has the same state.
        """
        return state_of(self._epoch, self._clips_done, self._clips_of_all, self._plan)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from `state`, also with another number of ranks; after the last batch of an epoch, with the next
        epoch.

        Raises `ConfigError` for a state of other clips.
        """
        try:
            epoch, clip, plan = (operator.index(state[name]) for name in ("epoch", "clip", "plan"))
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{shown(state)} is not the state of a loader", field="state", code="type") from error
        if plan != self._plan:
            raise ConfigError(
                "it belongs to other clips; use the catalog, split, clip and sampling with which it was saved",
                field="state",
                code="conflict",
            )
        ranks = self._ranks.world_size
        most = (self._clips + 1) * ranks - 1  # another number of ranks may leave some out
        if not 0 <= epoch < MOST_EPOCHS or not 0 <= clip <= most:
            raise ConfigError(f"there is no clip {clip} of epoch {epoch}", field="state", code="range")
        if self._clips * ranks - clip < (self._batch_size if self._drop_last else 1) * ranks:
            epoch, clip = epoch + 1, 0
        if clip % ranks:
            raise ConfigError(
                f"{clip} clips are done, which {ranks} ranks cannot share equally; use a number of ranks that divides "
                f"{clip}",
                field="state",
                code="conflict",
            )
        self.close()
        self._epoch, self._clips_done, self._begun, self._resuming = epoch, clip, False, True
        self._late, self._begun_by_state = False, not clip


def nothing() -> None:
    """Ends nothing."""


class _Sampler(NamedTuple):
    set_epoch: Callable[[int], None]
    """Called by Lightning with the number of the epoch."""


class _BatchSampler(NamedTuple):
    sampler: _Sampler


def state_of(epoch: int, clip: int, clips: int, plan: int) -> dict[str, int]:
    """The state of a loop that has done `clip` of the `clips` of an epoch. After all of them it is in the next epoch,
    since with another number of ranks an epoch may have more clips."""
    if clip >= clips:
        epoch, clip = epoch + 1, 0
    return {"epoch": epoch, "clip": clip, "plan": plan}


def closed_when_abandoned(
    loader: IterableDataset[Batch], close: Callable[[], None]
) -> weakref.finalize[[Callable[[], None]], IterableDataset[Batch]]:
    """Call `close` when the loader is garbage-collected, but not at the end of the process."""
    finalizer = weakref.finalize(loader, _in_a_thread, close)
    finalizer.atexit = False
    return finalizer


def _in_a_thread(close: Callable[[], None]) -> None:
    """In a new thread, since the garbage collector may run in a thread for which `close` waits."""
    guarded("essp-loader-close", close).start()

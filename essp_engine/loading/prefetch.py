"""Batches for the model, ready before it needs them: clips taken in order and collected.

    intake ──take──▶ (a loop's transform) ──▶ the batch that is being collected ──▶ queue ──next──▶ the device feed

The intake returns clips as the model sees them. The thread that reads a clip from the cache also decodes it and makes
the view (`IntakeOptions.prepare`): one of the intake's fetch threads, or otherwise the thread here that takes clips. A
loop's transform is the user's code. It need not be thread-safe, so this one thread runs it, on clips in their order.

A batch holds the next `size` indices of a phase, counted from where it starts, and the last batch of the phase holds
the rest. A skipped index makes its batch smaller. So the contents of a batch depend on the job alone, and a training
run that stops between two batches resumes with the same batches. So does a loop, which may then use another batch size.
A rank gets its share of each batch, which may be empty.

At most `batches_ahead` batches are held, including the one that is incomplete. `next` raises an error of the thread
after the batches that were complete before it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import PhasePlan
from essp_common.runtime.retry import retry_transient
from essp_engine.intake.ordered import Delivery, OrderedIntake, PhaseEnd
from essp_engine.loading.batch import Batch, Seen, Shown, Transform

_TAKE_S = 0.1


@dataclass(frozen=True, slots=True)
class PrefetchOptions:
    """How batches are formed and how far ahead they are prepared."""

    batch_size: int
    """Clips of a batch, over all ranks."""
    batches_ahead: int
    """Batches that this rank holds ahead."""
    name: str
    set_up_thread: Callable[[], object] | None = None
    """Called once on the thread that takes clips, which makes views if there are no fetch threads."""
    transform: Transform | None = None


class _Closing(Exception):
    """The thread must end."""


class Prefetch:
    """Prepares the batches of a training run. `next` is used from one thread; the rest is thread-safe."""

    def __init__(
        self, intake: OrderedIntake, phases: Sequence[PhasePlan], start: Position, options: PrefetchOptions
    ) -> None:
        """Start preparing at `start`. `intake` returns `Seen` clips. This takes ownership of it and closes it; other
        code may call only its `release` and `commit`."""
        self._intake = intake
        self._phases = phases
        self._start = start
        self._options = options
        self._queue: deque[Batch | PhaseEnd] = deque()
        self._changed = threading.Condition()
        """Guards the queue, the failure and the closing."""
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._collected: list[tuple[Delivery, Seen | None]] = []
        """The items of the next batch, with what the model sees; None: skipped."""
        self._thread = threading.Thread(target=self._run, name=f"essp-intake-{options.name}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            intake.close()
            raise

    @property
    def queued(self) -> int:
        """Clips that are ready."""
        with self._changed:
            return len(self._collected) + sum(len(one.items) for one in self._queue if isinstance(one, Batch))

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        """The next batch, or the end of a phase after its last batch; None if it is not ready within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._failure, timeout_s)
            if self._queue:
                self._changed.notify_all()  # there is room
                return self._queue.popleft()
            if self._failure is not None:
                raise self._failure
        return None

    def finish(self, items: Sequence[Delivery]) -> None:
        """Free the bytes of these clips and report them as finished. They need no redelivery."""
        self._intake.finish(items)

    def close(self) -> None:
        """Stop preparing. Unreleased clips are delivered again."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._intake.close()
        self._queue.clear()  # the frames may be memory that is shared with a decoder
        self._collected.clear()

    def _run(self) -> None:
        try:
            if self._options.set_up_thread is not None:
                self._options.set_up_thread()
            for ready in self._in_order():
                self._offer(ready)
            while True:
                self._take()  # messages that still arrive are useless and must be acked
        except _Closing:
            pass
        except BaseException as error:  # noqa: BLE001  raised again by `next`
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _in_order(self) -> Iterator[Batch | PhaseEnd]:
        """All batches from the start, each phase followed by its end."""
        first, start = self._start
        for phase_index, plan in enumerate(self._phases[first:], first):
            for begin in range(start, plan.clips, self._options.batch_size):
                yield self._batch(phase_index, begin, min(plan.clips, begin + self._options.batch_size))
            while (end := self._take()) is None:
                pass
            if not isinstance(end, PhaseEnd):
                raise RuntimeError(f"phase {phase_index} has more than its {plan.clips} clips")
            yield end
            start = 0

    def _batch(self, phase_index: int, begin: int, stop: int) -> Batch:
        """This rank's share of the clips from `begin` to before `stop`."""
        share = sum(map(self._intake.owns, range(begin, stop)))
        while len(self._collected) < share:
            item = self._take()
            if isinstance(item, PhaseEnd):
                raise RuntimeError(f"phase {phase_index} ended before its clip {stop - 1}")
            if item is not None:
                self._collected.append(self._seen(item))
        items = tuple(item for item, _ in self._collected)
        seen = [one for _, one in self._collected if one is not None]
        frames, colours = _shown(seen)
        cuts = tuple(one.cuts for one in seen if one.cuts)
        further = tuple(map(_shown, zip(*(one.further for one in seen), strict=True)))
        return Batch(phase_index, self._phases[phase_index], begin, stop, items, frames, colours, cuts, further)

    def _seen(self, item: Delivery) -> tuple[Delivery, Seen | None]:
        if item.skipped:
            return item, None
        seen: Seen = item.take_value()  # the frames keep the bytes alive while they need them
        if self._options.transform is not None:
            seen = self._options.transform(item.clip, seen)
        return item, seen

    def _offer(self, ready: Batch | PhaseEnd) -> None:
        """Put it into the queue, and wait until there is room to collect the next one."""
        with self._changed:
            self._collected = []
            self._queue.append(ready)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: (
                    self._closing.is_set()
                    or sum(isinstance(one, Batch) for one in self._queue) < self._options.batches_ahead
                )
            )

    def _take(self) -> Delivery | PhaseEnd | None:
        """The next clip or end of a phase; None: not yet. Raises `_Closing`."""
        if self._closing.is_set():
            raise _Closing
        return retry_transient(lambda: self._intake.take(_TAKE_S), self._closing.is_set, self._closing.wait)


def _shown(seen: Sequence[Seen]) -> Shown:
    """One view of the clips of a batch."""
    return Shown(tuple(one.frames for one in seen), tuple(one.colour for one in seen if one.colour is not None))

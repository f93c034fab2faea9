"""Clips for the model, ready before it asks: taken in order, decoded, seen, collected into batches.

    intake ──take──▶ decode ──▶ view (pool of loaders) ──▶ queue ──next──▶ batches

A view crops, resizes and mirrors a clip, or says what the device is to cut of it.

A batch holds the next `size` indices of a phase, counted from where it starts, and the last one of the phase has the
rest. A skipped index makes its batch smaller. So the contents of a batch depend on the job alone, and a training that
stops between two batches resumes with the same batches; so does a loop, which may then have another size of batches. A
rank gets its share of each batch, which may be empty.

Clips are decoded by the threads that fetch them (`essp_engine/intake/wanted.py`), or else by the one that takes them.
If these threads make the view, too (`IntakeOptions.prepare`), loaders have nothing to do.

At most `ahead` clips are held beyond the batch being collected. Damaged bytes in the cache count as lost: the clip is
rebuilt. An error of the thread is raised by `next`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import TypeVar

from essp_common.errors import BadFrames
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import PhasePlan
from essp_common.runtime.retry import retry_transient
from essp_engine.intake.ordered import Delivery, OrderedIntake, PhaseEnd
from essp_engine.intake.wanted import Decoded, Decoding
from essp_engine.loading.batch import Batch, Seen, View

T = TypeVar("T")

_TAKE_S = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    item: Delivery
    seen: Future[Seen] | None
    """None: skipped."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    item: Delivery
    seen: Seen | None


@dataclass(frozen=True, slots=True)
class PrefetchOptions:
    """How batches are cut and how far ahead they are prepared."""

    batch_size: int
    """Clips of a batch, over all ranks."""
    ahead: int
    """Clips that this rank holds ahead."""
    loaders: int
    """Threads that make views; 0: the thread that takes clips does, since there is nearly nothing to do."""
    wanted_frames: int | None
    """How many evenly spaced frames of each clip to decode (None: all)."""
    name: str
    set_up_loader: Callable[[], None] | None = None
    """Called once in each loader, before its first clip."""


class Prefetch:
    """Prepares the batches of a training. `next` is used from one thread; the rest is thread-safe."""

    def __init__(
        self,
        intake: OrderedIntake,
        phases: Sequence[PhasePlan],
        start: Position,
        view: View,
        options: PrefetchOptions,
    ) -> None:
        """Start preparing at `start`. Takes over `intake` and closes it; others may call only its `commit`."""
        self._intake = intake
        self._phases = phases
        self._view = view
        self._options = options
        self._decoded = Decoding(options.wanted_frames)
        self._queue: deque[_Prepared | PhaseEnd] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._phase_index, self._begin = start
        self._partial: list[_Ready] = []
        self._pool: ThreadPoolExecutor | None = None
        if options.loaders:
            self._pool = ThreadPoolExecutor(options.loaders, f"essp-load-{options.name}", options.set_up_loader)
        self._thread = threading.Thread(target=self._run, name=f"essp-intake-{options.name}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            intake.close()
            raise

    @property
    def queued(self) -> int:
        """Clips prepared or being prepared."""
        return len(self._queue)

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        """The next batch, or the end of a phase after its last batch; None if it is not ready within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        plan = self._phases[self._phase_index]
        stop = min(plan.clips, self._begin + self._options.batch_size)
        share = sum(1 for index in range(self._begin, stop) if self._intake.owns(index))
        while len(self._partial) < share:
            prepared = self._pop(deadline)
            if prepared is None:
                return None
            if isinstance(prepared, PhaseEnd):
                raise RuntimeError(f"phase {self._phase_index} ended before its clip {stop - 1}")
            self._partial.append(prepared)
        if self._begin >= plan.clips:
            end = self._pop(deadline)
            if isinstance(end, _Ready):
                raise RuntimeError(f"phase {self._phase_index} has more than its {plan.clips} clips")
            if end is not None:
                self._phase_index, self._begin = self._phase_index + 1, 0
            return end
        return self._cut(plan, stop)

    def finish(self, items: Sequence[Delivery]) -> None:
        """Free the bytes of these clips, and report them as done; they need no redelivery either."""
        self._intake.finish(items)

    def close(self) -> None:
        """Stop preparing. Clips that were not released are delivered again."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._intake.close()
        self._queue.clear()  # the frames may be memory that is shared with a decoder
        self._partial.clear()

    def _cut(self, plan: PhasePlan, stop: int) -> Batch:
        items = tuple(ready.item for ready in self._partial)
        seen = [ready.seen for ready in self._partial if ready.seen is not None]
        frames = tuple(each.frames for each in seen)
        colours = tuple(each.colour for each in seen if each.colour is not None)
        cuts = tuple(each.cuts for each in seen if each.cuts)
        begin, self._begin, self._partial = self._begin, stop, []
        return Batch(self._phase_index, plan, begin, stop, items, frames, colours, cuts)

    def _pop(self, deadline: float) -> _Ready | PhaseEnd | None:
        """The head of the queue once it is ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._failure, max(0.0, deadline - time.monotonic()))
            if not self._queue:
                if self._failure is not None:
                    raise self._failure
                return None
            head = self._queue[0]
        ready: _Ready | PhaseEnd
        if isinstance(head, PhaseEnd):
            ready = head
        elif head.seen is None:
            ready = _Ready(head.item, None)
        else:
            try:
                ready = _Ready(head.item, head.seen.result(max(0.0, deadline - time.monotonic())))
            except FutureTimeoutError:
                return None
        with self._changed:
            self._queue.popleft()
            self._changed.notify_all()
        return ready

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                with self._changed:
                    self._changed.wait_for(lambda: self._closing.is_set() or len(self._queue) < self._options.ahead)
                prepared = self._take()
                if prepared is not None:
                    with self._changed:
                        self._queue.append(prepared)
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  raised again by `next`
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _take(self) -> _Prepared | PhaseEnd | None:
        item = self._retry(lambda: self._intake.take(_TAKE_S))
        if item is None or isinstance(item, PhaseEnd):
            return item
        if item.skipped:
            return _Prepared(item, None)
        light = replace(item, value=b"")  # the decoded view keeps the bytes alive as long as it needs them
        if isinstance(item.value, Seen):
            return _Prepared(light, _done(item.value))
        try:
            decoded = item.value if isinstance(item.value, Decoded) else self._decoded(item.value)
        except BadFrames as error:
            reason = f"{item.key}: {error}"
            self._retry(lambda: self._intake.request_rebuild(item, reason))
            return None
        if self._pool is None:
            return _Prepared(light, _done(self._view(item.clip, decoded)))
        return _Prepared(light, self._pool.submit(self._view, item.clip, decoded))

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_transient(call, self._closing.is_set, self._closing.wait)


def _done(seen: Seen) -> Future[Seen]:
    ready: Future[Seen] = Future()
    ready.set_result(seen)
    return ready

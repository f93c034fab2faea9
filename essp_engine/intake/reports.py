"""What an intake reports to the master: the clips that it lacks, and those that it has finished.

    lost       the bytes are gone or damaged; the master issues the same seed again
    late       the next clip has not arrived for `_PATIENCE_S`: requests it, and the gaps among the clips after it
    rebuild    clips that were taken and committed are needed once more
    trained    clips were released; the master gets their credits back

If the master believes that a late clip was made or trained, it has that clip made again; if the clip is still being
made, it does nothing. The last released clips are reported again at the same time: if such a report was lost, its clip
may occupy the room that the late one needs. So a lost message or report never blocks a consumer.

Pure except for the log: time is passed in, and the caller publishes the messages. Each message is created when the
caller requests it, so a message that could not be published does not count as reported.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from essp_common.failures import shortened, stage_named
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import LOST, ClipRef, Failed, PhasePlan, Progress, Purpose, Trained
from essp_common.runtime import ids

log = logging.getLogger(__name__)

LOOK_AHEAD = 256
"""How many clips are looked up when one is gone, or requested when one is late: about the number that decoders make
while one clip goes through all services."""
_PATIENCE_S = 30.0
"""How long to wait for a clip before it is requested: longer than most clips need. A request for a clip on its way is
harmless."""


class IntakeReports:
    """Reports about the clips of one stream and consumer. `trained` may be called from any thread."""

    def __init__(
        self, phases: Sequence[PhasePlan], job: str, consumer: str, stream: str, worker: str, fence: int
    ) -> None:
        """As in `IntakeOptions`."""
        self._phases = phases
        self._job = job
        self._consumer = consumer
        self._stream = stream
        self._worker = worker
        self._fence = fence
        self._awaited: tuple[Position, float] | None = None
        """The clip that is late, and since when it has been late; this time restarts with each request."""
        self._logged: Position | None = None
        """The last clip whose request was logged."""
        self._released: deque[ClipRef] = deque(maxlen=LOOK_AHEAD)
        """The last clips that were reported as trained."""

    def lost(self, clip: ClipRef, reason: str, fence: int = 0, awaited: bool = False) -> Progress:
        """Report that the bytes of a clip are missing. `fence`: the fence of their seed; 0: not known. `awaited`: they
        have not arrived yet, which does not count as a failure of the clip."""
        failed = Failed(
            clip=clip,
            stage=stage_named(ids.service_of(self._consumer)),
            reason=shortened(reason),
            kind=LOST,
            stream=self._stream,
            consumer=self._consumer,
            awaited=awaited,
        )
        return Progress(job=self._job, worker=self._worker, fence=fence or self._fence, failed=failed)

    def late(self, position: Position, missing: Iterable[Position], now_s: float) -> Iterator[Progress]:
        """Request the clip at `position` if it has been late for long. `missing`: the position, and the gaps after
        it."""
        if self._awaited is None or self._awaited[0] != position:
            self._awaited = position, now_s
        elif now_s - self._awaited[1] >= _PATIENCE_S:
            self._awaited = position, now_s
            places = list(islice(missing, LOOK_AHEAD))
            self._log(position, len(places) - 1)
            for place in places:
                yield self.lost(self._clip(place), "no message about this clip has arrived", awaited=True)
            yield from self.trained(list(self._released), again=True)

    def rebuild(self, start: Position, stop: Position, owns: Callable[[int], bool]) -> Iterator[Progress]:
        """Report that all clips of this rank between these positions are needed again."""
        for phase_index, plan in enumerate(self._phases):
            for index in filter(owns, range(plan.clips)):
                if start <= (position := Position(phase_index, index)) < stop:
                    yield self.lost(self._clip(position), "the checkpoint that was trained with it is damaged")

    def trained(self, clips: Iterable[ClipRef], again: bool = False) -> Iterator[Progress]:
        """Report that these clips were released. `again`: this was reported before."""
        by_phase: dict[tuple[Purpose, int], list[ClipRef]] = defaultdict(list)
        for clip in clips:
            by_phase[clip.purpose, clip.epoch].append(clip)
        for (purpose, epoch), done in by_phase.items():
            attempts = [clip.attempt for clip in done]
            trained = Trained(
                job=self._job,
                purpose=purpose,
                epoch=epoch,
                consumer=self._consumer,
                indices=[clip.index for clip in done],
                attempts=attempts if any(attempts) else (),
                again=again,
            )
            yield Progress(job=self._job, worker=self._worker, fence=self._fence, trained=trained)
            if not again:
                self._released += done

    def _clip(self, position: Position) -> ClipRef:
        plan = self._phases[position.phase_index]
        return ClipRef(job=self._job, purpose=plan.purpose, epoch=plan.epoch, index=position.index)

    def _log(self, position: Position, behind: int) -> None:
        """Log the requested clips, once for each late clip."""
        if position == self._logged:
            return
        self._logged = position
        plan = self._phases[position.phase_index]
        purpose, epoch = Purpose.Name(plan.purpose).lower(), plan.epoch + 1
        what = f"clip {position.index} of {purpose} {epoch}, and {behind} after it"
        log.info("%s: waits for %s and requests it", self._consumer, what)

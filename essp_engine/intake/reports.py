"""What an intake reports to the master: the clips that it lacks, and those that it is done with.

    lost       the bytes are gone or damaged; the master issues the same seed again
    late       the next clip has not come for `_PATIENCE_S`: asks for it, and for the gaps among the clips behind it
    rebuild    clips that were taken and committed are needed once more
    trained    clips were released; the master gets their credits back

If the master believes that a late clip was made or trained, it has that clip made again; if the clip is still being
made, it does nothing. The clips that were released last are reported again at the same time: if such a report was lost,
its clip may occupy what the late one needs. So no lost message or report holds a consumer up for ever.

Pure but for the log: time is passed in, and the caller publishes the messages. Each is made when the caller asks for
it, so a message that could not be published does not count as reported.
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
"""How many clips are looked up when one is gone, or asked for when one is late: about as many as decoders make while
one clip goes through all services."""
_PATIENCE_S = 30.0
"""For how long a clip is waited for before it is asked for: longer than most clips are on their way. It is harmless to
ask for one that is."""


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
        """The clip that is late, and since when it has been waited for; that time begins again with each request."""
        self._logged: Position | None = None
        """The last clip that the log says was asked for."""
        self._released: deque[ClipRef] = deque(maxlen=LOOK_AHEAD)
        """The last clips that were reported as trained."""

    def lost(self, clip: ClipRef, reason: str, fence: int = 0, awaited: bool = False) -> Progress:
        """The bytes of a clip are missing. `fence`: of the seed that they were made from; 0: not known. `awaited`: they
        have not come yet, which is not held against the clip."""
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
        """The intake waits for the clip at `position`: ask for it, once that has lasted for long. `missing`: the
        position, and the gaps behind it."""
        if self._awaited is None or self._awaited[0] != position:
            self._awaited = position, now_s
        elif now_s - self._awaited[1] >= _PATIENCE_S:
            self._awaited = position, now_s
            places = list(islice(missing, LOOK_AHEAD))
            self._log(position, len(places) - 1)
            for place in places:
                yield self.lost(self._clip(place), "no message has come that it is there", awaited=True)
            yield from self.trained(list(self._released), again=True)

    def rebuild(self, start: Position, stop: Position, owns: Callable[[int], bool]) -> Iterator[Progress]:
        """All clips of this rank between these positions are needed again."""
        for phase_index, plan in enumerate(self._phases):
            for index in filter(owns, range(plan.clips)):
                if start <= (position := Position(phase_index, index)) < stop:
                    yield self.lost(self._clip(position), "the checkpoint that was trained with it is damaged")

    def trained(self, clips: Iterable[ClipRef], again: bool = False) -> Iterator[Progress]:
        """These clips were released. `again`: that was reported before."""
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
        """Say what is asked for, once for each clip that is late."""
        if position == self._logged:
            return
        self._logged = position
        plan = self._phases[position.phase_index]
        purpose, epoch = Purpose.Name(plan.purpose).lower(), plan.epoch + 1
        what = f"clip {position.index} of {purpose} {epoch}, and {behind} behind it"
        log.info("%s: waits for %s; asks for it", self._consumer, what)

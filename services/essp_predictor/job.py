"""The share of one job that falls to this predictor; and its answers (`tasks.py`), if this predictor leads.

    each stream, in its own thread:   clips of its share ──▶ scores, saved block by block (`stream.py`)
    when all are saved, the leader:   a few videos at a time: fuse ──▶ predictions.parquet

The share changes when predictors come and go (`service.py`). What is scored by then is saved, and the rest is dealt
again; the next owner of a block finds its messages not committed, and nearly always its bytes in the cache. So neither
memory nor the cost of a crash grows with the number of videos, and a video of any length occupies memory only with its
scores. If the job extracts, vectors replace the scores (`feature_output.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from essp_common import topics
from essp_common.artifacts.partial_scores import PartialScores, Saved
from essp_common.errors import TransientError
from essp_common.job.position import Position
from essp_common.job.spec import stored_spec
from essp_common.messages.control import run_of
from essp_common.messages.snapshot import completed
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime import ids
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_engine.intake.ordered import IntakeOptions, OrderedIntake, Share
from essp_engine.intake.wanted import in_flight
from essp_engine.worker.heartbeat import LaneLoad
from essp_predictor.config import PredictorSettings
from essp_predictor.scoring import device_of
from essp_predictor.stream import Scorer, StreamOptions, StreamPhase
from essp_predictor.tasks import Answers, task_of

log = logging.getLogger(__name__)

_TAKE_S = 0.1
_LOOK_S = 0.1
"""How often a predictor checks whether its share has changed."""
_LONGEST_LOOK_S = 2.0
"""The same, for the leader that waits until others have saved what they score: each look lists the store."""


@dataclass(frozen=True, slots=True)
class Role:
    """The part of a predictor in a job, which changes. Its functions are thread-safe and fast."""

    leave: Callable[[], bool]
    """Whether the job has ended or the process is draining."""
    share: Callable[[], frozenset[int]]
    """The partitions whose clips it scores."""
    leads: Callable[[], bool]
    """Whether it writes the answers."""
    run_of: Callable[[int], int | None]
    """As in `IntakeOptions`."""


class PredictionJob:
    """Takes part in one job until its end."""

    def __init__(
        self,
        adapters: Adapters,
        settings: PredictorSettings,
        worker: str,
        command: Control,
        role: Role,
        load: LaneLoad,
    ) -> None:
        """`load`: notes how busy the predictor is.

        Raises `PermanentError` or `ConfigError` if the model cannot be used, or differs from the one that the run began
        with.
        """
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._command = completed(command, adapters.stores)
        self._spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
        self._role = role
        self._load = load
        self._broken = threading.Event()
        self._finished = threading.Event()
        """A stream has scored its share."""
        layouts, device = self._command.snapshot.layouts, device_of(settings.device)
        self._task = task_of(self._spec, layouts, adapters.stores, device, settings.code)
        self._output = adapters.stores.under(self._spec.output)
        digest = self._command.snapshot.plan_digest
        self._partial_scores = PartialScores(self._output, self._spec, digest, self._task.model)
        [self._clips] = [plan.clips for plan in self._command.snapshot.phases]
        self._scorers: dict[str, Scorer] = {}
        """By stream; loaded with the first clip of it that falls to this predictor."""

    def run(self) -> Answers | None:
        """Score and save; the leader fuses and writes. Returns None if the job was left before that."""
        self._partial_scores.bind(run_of(self._command))
        while not self._role.leave():
            if self._score(self._role.share()):
                break
        else:
            return None
        answers = self._task.write(self._output, self._partial_scores, self._clips)
        failpoint("predictor.written")
        return answers

    def _score(self, partitions: frozenset[int]) -> bool:
        """Score a share until it changes or the job is left. Returns True, to the leader alone, if all clips are saved
        by then."""
        streams = self._streams(partitions)
        over = threading.Event()
        try:
            with ThreadPoolExecutor(max(1, len(streams)), thread_name_prefix="essp-predict") as pool:
                running = [pool.submit(self._run_stream, stream, over) for stream in streams]
                try:
                    complete = self._watch(streams, partitions)
                finally:
                    over.set()
                for each in running:
                    each.result()
                return complete
        finally:
            for stream in streams:
                stream.close()

    def _streams(self, partitions: frozenset[int]) -> list[StreamPhase]:
        """Open the streams that have clips on these partitions."""
        saved = {stream: self._partial_scores.saved(stream) for stream in self._spec.streams}
        blocks = range(-(-self._clips // topics.BLOCK_CLIPS))
        share = Share(partitions, self._adapters.bus.partitions)
        own = sum(share.has(block) for block in blocks)
        log.info(
            "job %s: scores %d of %d blocks of clips, as one of the predictors",
            self._spec.name,
            own,
            len(blocks),
            extra={"job_id": self._spec.name},
        )
        opened: list[StreamPhase] = []
        try:
            for name, known in saved.items():
                if own and len(known.blocks) < len(blocks):
                    opened.append(self._stream(name, replace(share, saved=known.blocks)))
        except BaseException:
            for stream in opened:
                stream.close()
            raise
        return opened

    def _stream(self, name: str, share: Share) -> StreamPhase:
        if name not in self._scorers:
            self._scorers[name] = self._task.scorer(name)
        scorer = self._scorers[name]
        options = StreamOptions(name, self._clips, self._settings.batch_clips, self._task.classes)
        return StreamPhase(self._intake(name, scorer, share), scorer, self._partial_scores, options, self._load)

    def _intake(self, stream: str, scorer: Scorer, share: Share) -> OrderedIntake:
        settings, described = self._settings, self._spec.streams[stream]
        fetches, read = in_flight(self._spec.clip, described, settings.cache, settings.fetches)
        options = IntakeOptions(
            job=self._command.job,
            consumer=ids.predictor_consumer(stream),
            stream=stream,
            feature=described.feature,
            worker=self._worker,
            fence=self._command.fence,
            since=run_of(self._command),
            run_of=self._role.run_of,
            share=share,
            fetches=fetches,
            read=read,
            prepare=lambda _, decoded: scorer.views(decoded),
        )
        phases = self._command.snapshot.phases
        return OrderedIntake(self._adapters.bus, self._adapters.cache, options, phases, Position(0, 0))

    def _watch(self, streams: Sequence[StreamPhase], partitions: frozenset[int]) -> bool:
        """Wait until the share changes or the job is left; or, for the leader, until all clips are saved, by all
        predictors together. Returns True for the latter."""
        outage = Outage(ids.PREDICTOR, self._broken.wait)
        pause_s = _LOOK_S
        while not (self._role.leave() or self._broken.is_set() or self._role.share() != partitions):
            if self._role.leads() and all(stream.finished for stream in streams):
                with outage:
                    if self._is_saved():
                        return True
                pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
                self._broken.wait(pause_s)
            else:
                self._finished.wait(_LOOK_S)
                self._finished.clear()
        return False

    def _is_saved(self) -> bool:
        found: list[Saved] = [self._partial_scores.saved(stream) for stream in self._spec.streams]
        return all(saved.stop(self._clips) == self._clips for saved in found)

    def _run_stream(self, stream: StreamPhase, over: threading.Event) -> None:
        """Score a stream until `over`. When its share is scored, messages that still arrive are acked and dropped."""
        outage = Outage(ids.PREDICTOR, self._broken.wait)
        told = False
        try:
            while not (over.is_set() or self._role.leave() or self._broken.is_set()):
                with outage:
                    stream.step(_TAKE_S)
                if stream.finished and not told:
                    told = True
                    self._finished.set()
            with suppress(TransientError):
                stream.save()
        except BaseException:
            self._broken.set()  # the other streams are useless without this one
            self._finished.set()
            raise

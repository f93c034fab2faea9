"""One job of predictors: scores the clips of each stream, fuses by video, writes the answers (`tasks.py`).

    each stream, in its own thread:  clips ──▶ scores, saved part by part (`stream.py`)
    when all are done:               a few videos at a time: fuse ──▶ predictions.parquet

If the job extracts, vectors take the place of scores, and are written by video, too (`feature_output.py`).

After a predictor dies, the job resumes with the part that was in progress. So neither memory nor the cost of a crash
grows with the number of videos, and a video of any length occupies memory only with its scores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from essp_common.artifacts.partial_scores import PartialScores
from essp_common.job.position import Position
from essp_common.job.spec import stored_spec
from essp_common.messages.control import run_of
from essp_common.messages.snapshot import completed
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime import ids
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_engine.intake.ordered import IntakeOptions, OrderedIntake
from essp_engine.intake.wanted import in_flight
from essp_predictor.config import PredictorSettings
from essp_predictor.scoring import device_of
from essp_predictor.stream import Scorer, StreamOptions, StreamPhase
from essp_predictor.tasks import Answers, task_of

log = logging.getLogger(__name__)

_TAKE_S = 0.1


class PredictionJob:
    """Runs one job to its end."""

    def __init__(
        self,
        adapters: Adapters,
        settings: PredictorSettings,
        worker: str,
        command: Control,
        leave: Callable[[], bool],
        run_of: Callable[[int], int | None],
    ) -> None:
        """`leave`: whether the job was stopped or the process is draining. `run_of`: as in `IntakeOptions`."""
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._command = completed(command, adapters.stores)
        self._spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
        self._leave = leave
        self._run_of = run_of
        self._broken = threading.Event()

    def run(self) -> Answers | None:
        """Score and save, fuse, write. Returns None if it left before that.

        Raises `PermanentError` or `ConfigError` if the model cannot be used, or differs from the one that the run began
        with.
        """
        spec = self._spec
        layouts = self._command.snapshot.layouts
        task = task_of(spec, layouts, self._adapters.stores, device_of(self._settings.device), self._settings.code)
        output = self._adapters.stores.under(spec.output)
        partial_scores = PartialScores(output, spec, self._command.snapshot.plan_digest, task.model)
        partial_scores.bind(run_of(self._command))
        [clips] = [plan.clips for plan in self._command.snapshot.phases]
        streams: list[StreamPhase] = []
        try:
            for stream in spec.streams:
                scorer = task.scorer(stream)
                intake = self._intake(stream, scorer, partial_scores.stop(stream, clips))
                options = StreamOptions(stream, clips, self._settings.batch_clips, task.classes)
                streams.append(StreamPhase(intake, scorer, partial_scores, options))
            if not self._score(streams):
                return None
        finally:
            for stream_phase in streams:
                stream_phase.close()
        answers = task.write(output, partial_scores, clips)
        failpoint("predictor.written")
        return answers

    def _intake(self, stream: str, scorer: Scorer, start: int) -> OrderedIntake:
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
            run_of=self._run_of,
            fetches=fetches,
            read=read,
            prepare=lambda _, decoded: scorer.views(decoded),
        )
        phases = self._command.snapshot.phases
        return OrderedIntake(self._adapters.bus, self._adapters.cache, options, phases, Position(0, start))

    def _score(self, streams: list[StreamPhase]) -> bool:
        """Run all streams in parallel. Returns False if any of them left early."""
        with ThreadPoolExecutor(len(streams), thread_name_prefix="essp-predict") as pool:
            return all([done.result() for done in [pool.submit(self._run_stream, s) for s in streams]])

    def _run_stream(self, stream: StreamPhase) -> bool:
        outage = Outage(ids.PREDICTOR, self._broken.wait)
        try:
            while not stream.finished:
                if self._leave() or self._broken.is_set():
                    return False
                with outage:
                    stream.step(_TAKE_S)
            return True
        except BaseException:
            self._broken.set()  # the other streams are useless without this one
            raise

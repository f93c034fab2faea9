"""One predict job: scores the clips of each stream, fuses by video, writes the answers.

    each stream, in its own thread:  clips ──▶ scores, saved part by part (`stream.py`)
    when all are done:               a few videos at a time: fuse ──▶ predictions.parquet

After a predictor dies, the job resumes with the part that was in progress. So neither memory nor the cost of a crash
grows with the number of videos, and a video of any length occupies memory only with its scores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.partial_scores import PartialScores
from essp_common.artifacts.predictions import write_predictions
from essp_common.artifacts.segments import write_segments
from essp_common.cache.port import FrameCache
from essp_common.job.position import Position
from essp_common.job.spec import stored_spec
from essp_common.messages.control import run_of
from essp_common.messages.snapshot import completed
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.records.names import name_of, names_by_split
from essp_common.runtime import ids
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_engine.aggregation.fused import fusion_of
from essp_engine.features.sampling import wanted_frames
from essp_engine.intake.ordered import IntakeOptions, OrderedIntake
from essp_engine.intake.wanted import Decoded, Decoding, in_flight
from essp_predictor.answers import FusedAnswers
from essp_predictor.config import PredictorSettings
from essp_predictor.scoring import Frames, StreamScorer, View, device_of
from essp_predictor.stream import StreamOptions, StreamPhase

log = logging.getLogger(__name__)

_TAKE_S = 0.1


@dataclass(frozen=True, slots=True)
class Answers:
    """The results of a finished job."""

    uri: str
    videos: int
    failed: int
    """Number of videos without a single decoded clip."""


class PredictionJob:
    """Runs one predict job to its end."""

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
        if spec.predictor is None:
            raise ValueError(f"job {spec.name} has no predictor")
        model_store, model = open_model(self._adapters.stores, spec.predictor.model)
        fuse = fusion_of(model_store, model)
        output = self._adapters.stores.under(spec.output)
        partial_scores = PartialScores(output, spec, self._command.snapshot.plan_digest, model)
        partial_scores.bind(run_of(self._command))
        device = device_of(self._settings.device)
        [clips] = [plan.clips for plan in self._command.snapshot.phases]
        streams: list[StreamPhase] = []
        try:
            for stream in spec.streams:
                scorer = StreamScorer(model_store, model, stream, device, self._settings.code)
                intake = self._intake(stream, scorer, partial_scores.stop(stream, clips))
                options = StreamOptions(stream, clips, self._settings.batch_clips, model.classes)
                streams.append(StreamPhase(intake, scorer, partial_scores, options))
            if not self._score(streams):
                return None
        finally:
            for stream_phase in streams:
                stream_phase.close()
        answers = FusedAnswers(partial_scores, spec, model, fuse, clips)
        names = names_by_split(spec, self._adapters.stores)
        found = answers.predictions()
        named = ([replace(row, name=name_of(row.video_id, names) or None) for row in part] for part in found)
        write_predictions(output, layout.PREDICTIONS, named, answers.classes)
        if spec.predictor.segments:
            write_segments(output, layout.SEGMENTS, answers.segments())
        failpoint("predictor.written")
        return Answers(output.uri(layout.PREDICTIONS), answers.videos, answers.failed)

    def _intake(self, stream: str, scorer: StreamScorer, start: int) -> OrderedIntake:
        settings, described = self._settings, self._spec.streams[stream]
        fetches, read = in_flight(self._spec.clip, described, settings.cache, settings.fetches)
        decode = Decoding(wanted_frames(self._spec.clip, described))

        def views(cache: FrameCache, key: str, size_bytes: int) -> dict[View, Frames]:
            value = read(cache, key, size_bytes)
            return scorer.views(value if isinstance(value, Decoded) else decode(value))

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
            read=views,
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

"""One predict job: score the clips of each stream, average by video, fuse, write the answers.

Each stream is taken in index order in a thread of its own. Bytes are freed as soon as a clip is decoded, so the job's
budget may be smaller than a batch. Messages are committed only when the answers are written: a predictor that dies is
handed all of them again, finds the bytes gone, and has the clips made again. So no half-done state is kept anywhere.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from essp_common import layout
from essp_common.errors import BadFrames, TransientError
from essp_common.layout import Position
from essp_common.model import FusedModel, open_model
from essp_common.ordered import IntakeOptions, OrderedIntake, PassEnd, Taken
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.predictions import Prediction, predictions, write_predictions
from essp_common.scores import ScoreTable, VideoScores, by_video, fuse
from essp_common.spec import stored_spec
from essp_common.wiring import Adapters
from services.predictor.config import PredictorSettings
from services.predictor.scoring import Frames, Look, StreamScorer, device_of

log = logging.getLogger(__name__)

_TAKE_S = 0.1


@dataclass(frozen=True, slots=True)
class Answers:
    """What a finished job has written."""

    uri: str
    videos: int
    failed: int
    """Videos of which nothing could be decoded."""


class PredictionJob:
    """Runs one predict job to its end."""

    def __init__(
        self,
        adapters: Adapters,
        settings: PredictorSettings,
        worker: str,
        command: Control,
        leave: Callable[[], bool],
    ) -> None:
        """`leave` says that the job was stopped or the process drains."""
        self._adapters = adapters
        self._settings = settings
        self._worker = worker
        self._command = command
        self._spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
        self._leave = leave
        self._broken = threading.Event()

    def run(self) -> Answers | None:
        """Score, fuse, write, commit. None when told to leave before that.

        Raises `PermanentError` or `ConfigError` when the model cannot be used.
        """
        spec = self._spec
        if spec.predictor is None:
            raise ValueError(f"job {spec.name} predicts nothing")
        model_store, model = open_model(self._adapters.stores, spec.predictor.model)
        device = device_of(self._settings.device)
        streams: list[StreamPass] = []
        try:
            for stream in spec.streams:
                scorer = StreamScorer(model_store, model, stream, device)
                streams.append(StreamPass(self._intake(stream), scorer, self._settings.batch_clips))
            if not self._score(streams):
                return None
            rows = _answers(model, streams)
            output = self._adapters.stores.under(spec.output)
            write_predictions(output, layout.PREDICTIONS, rows, model.classes)
            for stream_pass in streams:
                stream_pass.commit()
        finally:
            for stream_pass in streams:
                stream_pass.close()
        return Answers(output.uri(layout.PREDICTIONS), len(rows), sum(row.class_name is None for row in rows))

    def _intake(self, stream: str) -> OrderedIntake:
        options = IntakeOptions(
            job=self._command.job,
            consumer=f"predictor.{stream}",
            stream=stream,
            feature=self._spec.streams[stream].feature,
            worker=self._worker,
            fence=self._command.fence,
        )
        passes = self._command.snapshot.passes
        return OrderedIntake(self._adapters.bus, self._adapters.cache, options, passes, Position(0, 0))

    def _score(self, streams: list[StreamPass]) -> bool:
        """Run all streams side by side; False when told to leave."""
        with ThreadPoolExecutor(len(streams), thread_name_prefix="essp-predict") as pool:
            return all([done.result() for done in [pool.submit(self._run_stream, s) for s in streams]])

    def _run_stream(self, stream: StreamPass) -> bool:
        try:
            while not stream.finished:
                if self._leave() or self._broken.is_set():
                    return False
                try:
                    stream.step(_TAKE_S)
                except TransientError as error:
                    log.warning("predictor: %s; trying again", error)
                    self._broken.wait(error.retry_after_s)
            return True
        except BaseException:
            self._broken.set()  # the other streams are of no use without this one
            raise


class StreamPass:
    """The clips of one stream, on their way to scores. Used from one thread."""

    def __init__(self, intake: OrderedIntake, scorer: StreamScorer, batch_clips: int) -> None:
        self._intake = intake
        self._scorer = scorer
        self._batch_clips = batch_clips
        self._waiting: list[tuple[Taken, Mapping[Look, Frames]]] = []
        self._unreleased: list[Taken] = []
        self._taken: list[Taken] = []
        self._scored: list[Taken] = []
        self._probabilities: dict[str, list[NDArray[np.float32]]] = defaultdict(list)
        self.errors: dict[str, str] = {}
        """Video -> why a clip of it is missing."""

    @property
    def finished(self) -> bool:
        """Everything is taken, scored and released."""
        return self._intake.finished and not self._waiting and not self._unreleased

    def step(self, timeout_s: float) -> None:
        """Take one clip, or do what is due at the end. Safe to call again after a `TransientError`."""
        if not self._intake.finished:
            taken = self._intake.take(timeout_s)
            if isinstance(taken, Taken):
                self._receive(taken)
                return
            if isinstance(taken, PassEnd):
                self._score_waiting()
        self._release()

    def _receive(self, taken: Taken) -> None:
        light = replace(taken, value=b"")
        if taken.skipped:
            self.errors[taken.clip.video_id] = taken.skipped
        else:
            try:
                self._waiting.append((light, self._scorer.views(taken.value)))
            except BadFrames as error:
                self._intake.retake(taken, str(error))
                return
            self._unreleased.append(light)
        self._taken.append(light)
        if (taken.clip.index + 1) % self._batch_clips == 0:
            self._score_waiting()
            self._release()

    def _score_waiting(self) -> None:
        if not self._waiting:
            return
        for trainer, rows in self._scorer.score([views for _, views in self._waiting]).items():
            self._probabilities[trainer].append(rows)
        self._scored.extend(item for item, _ in self._waiting)
        self._waiting.clear()

    def _release(self) -> None:
        self._intake.release(self._unreleased)
        self._unreleased.clear()

    def scores(self, classes: tuple[str, ...]) -> dict[str, VideoScores]:
        """Trainer -> its scores by video."""
        videos = tuple(item.clip.video_id for item in self._scored)
        labels = np.full(len(videos), -1, dtype=np.int32)
        indices = np.array([item.clip.index for item in self._scored], dtype=np.int64)
        return {
            trainer: by_video(ScoreTable(videos, labels, indices, np.concatenate(rows), classes))
            for trainer, rows in self._probabilities.items()
        }

    def clips(self) -> Counter[str]:
        """Video -> how many of its clips were scored."""
        return Counter(item.clip.video_id for item in self._scored)

    def commit(self) -> None:
        """The answers are written: nothing needs redelivery."""
        self._intake.commit(self._taken)

    def close(self) -> None:
        """Leave the stream."""
        self._intake.close()


def _answers(model: FusedModel, streams: list[StreamPass]) -> list[Prediction]:
    parts: dict[str, VideoScores] = {}
    clips: Counter[str] = Counter()
    errors: dict[str, str] = {}
    for stream in streams:
        parts.update(stream.scores(model.classes))
        clips |= stream.clips()
        errors.update(stream.errors)
    if parts:
        fused = fuse(parts, model.weights, model.rule)
    else:
        fused = VideoScores((), np.zeros(0, np.int32), np.zeros((0, len(model.classes))), model.classes)
    return predictions(fused, clips, errors)

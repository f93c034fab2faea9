"""The whole embedded path up to a trainer that does nothing: what ESSP itself costs.

Master, decoder and extractors are the real ones, in one process as `essp run` has them. In place of the trainers stand
consumers that take every clip in order, as trainers do, look at its frames and release it. When all are through, they
say what an aggregator says, and the job is complete.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common import topics
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import AGGREGATOR, Control, Finished, Progress
from essp_common.runtime import ids
from essp_common.runtime.config import Settings
from essp_common.runtime.garbage import collect_rarely
from essp_common.runtime.process import run_all
from essp_common.runtime.service import Service
from essp_common.wiring import Adapters
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake, PhaseEnd
from essp_engine.video import codec

JOB = "benchmark"
_WAIT_S = 0.2
_BATCH = 8


@dataclass(frozen=True, slots=True)
class NullJob:
    """A job whose clips are thrown away."""

    catalog: Path
    features: tuple[str, ...] = ("rgb",)
    size: int = 256
    frames: int = 11
    stride: int = 1
    locality: int = 0
    clips_per_visit: int = 0
    """Clips of each video that is drawn, with a pooled plan; 0: no pooled plan."""
    window: int = 0
    """Window of the pooled plan."""
    step: int = 0
    """Distance in frames of places that are each shown once; 0: places are drawn at random."""
    processes: int = 1
    """Child processes that decode."""
    collate: bool = False
    """Copy the clips of each batch into one array, as a DataLoader does."""

    def spec(self, clips: int, output: str) -> JobSpec:
        """The job with `clips` training clips."""
        frame_bytes = self.size * self.size * 3
        together = max(self.locality, self.window)
        window_bytes = 4 * frame_bytes * self.frames * len(self.features) * (together + 2 * _BATCH)
        sampling: dict[str, Any] = {"clips_per_epoch": clips, "clips_per_video": 1, "locality": self.locality}
        if self.clips_per_visit:
            sampling |= {"kind": "pooled", "clips_per_visit": self.clips_per_visit, "window": self.window}
        if self.step:
            sampling |= {"kind": "exhaustive", "step": self.step}
        return JobSpec.model_validate(
            {
                "name": JOB,
                "output": output,
                "epochs": 1,
                "data": {"catalog": f"file://{self.catalog}", "test": None},
                "clip": {
                    "frames": self.frames,
                    "stride": self.stride,
                    "resize": {"mode": "exact", "height": self.size, "width": self.size},
                },
                "sampling": sampling,
                "streams": {name: {"feature": name} for name in self.features},
                "trainers": {
                    name: {"stream": name, "batch_size": _BATCH, "augment": {"crop": self.size}}
                    for name in self.features
                },
                "limits": {"budget": max(256 * 2**20, window_bytes)},
            }
        )


def run(job: NullJob, clips: int) -> None:
    """Run the job to its end. Raises `RuntimeError` when it does not complete."""
    collect_rarely()  # as `essp run` does
    os.environ["ESSP_DECODER_PROCESSES"] = str(job.processes)
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder:
        run_spec(job.spec(clips, f"file://{folder}"), job.collate)


def run_spec(spec: JobSpec, collate: bool = False) -> int:
    """Run a training job with consumers that do nothing; how many samples they took."""
    nobody: list[NullTrainers] = []

    def consumers(spec: JobSpec, adapters: Adapters, control: ControlFeed, settings: Settings) -> Sequence[Service]:
        nobody.append(NullTrainers(spec, adapters, control, collate))
        return nobody

    with Embedded(spec, Settings(), EmbeddedOptions(fresh=True, consumers=consumers)) as embedded:
        # The status is not asked for meanwhile: what that costs is the view's, not the path's.
        nobody[0].left.wait()
        while not embedded.ended(_WAIT_S):
            pass
        status = embedded.status()
    if status.state is not JobState.COMPLETED:
        raise RuntimeError(f"the job {status.state}: {status.reason}")
    return nobody[0].samples


class NullTrainers:
    """Takes all streams of a job, then completes it."""

    name = "null-trainers"

    def __init__(self, spec: JobSpec, adapters: Adapters, control: ControlFeed, collate: bool) -> None:
        self.samples = 0
        """Taken, by all of them."""
        self.left = threading.Event()
        """Through with everything, drained, or the job ended otherwise."""
        self._spec = spec
        self._adapters = adapters
        self._control = control
        self._collate = collate
        self._draining = threading.Event()

    def run(self) -> None:
        """Consume every phase. Left early when drained, or when the job ends."""
        try:
            while (command := self._control.wait(self._spec.name, _WAIT_S)) is None:
                if self._draining.is_set():
                    return
            trainers = [_NullTrainer(self._intake(name, command), self) for name in self._spec.trainers]
            run_all(trainers)
            self.samples = sum(trainer.samples for trainer in trainers)
            if not self.leaving:
                self._complete(command)
        finally:
            self.left.set()

    @property
    def leaving(self) -> bool:
        """There is no point in going on."""
        return self._draining.is_set() or self._control.ended(self._spec.name)

    @property
    def collate(self) -> bool:
        """Copy each batch into one array."""
        return self._collate

    def _complete(self, command: Control) -> None:
        finished = Finished(job=self._spec.name, stage=AGGREGATOR, uri=self._spec.output)
        message = Progress(job=self._spec.name, worker=self.name, fence=command.fence, finished=finished)
        self._adapters.bus.publish(topics.PROGRESS, self._spec.name.encode(), message.SerializeToString())
        self._adapters.bus.flush()

    def drain(self) -> None:
        """Leave what is in hand."""
        self._draining.set()

    def _intake(self, trainer: str, command: Control) -> OrderedIntake:
        stream = self._spec.trainers[trainer].stream
        options = IntakeOptions(
            job=self._spec.name,
            consumer=ids.trainer_consumer(trainer),
            stream=stream,
            feature=self._spec.streams[stream].feature,
            worker=self.name,
            fence=command.fence,
        )
        return OrderedIntake(self._adapters.bus, self._adapters.cache, options, command.snapshot.phases, Position(0, 0))


class _NullTrainer:
    """Takes one stream. Batches are freed together, as a trainer frees them."""

    name = "null-trainer"

    def __init__(self, intake: OrderedIntake, trainers: NullTrainers) -> None:
        self.samples = 0
        self._intake = intake
        self._trainers = trainers

    def run(self) -> None:
        """Until all phases are over."""
        batch: list[Delivery] = []
        while not self._intake.finished:
            taken = self._intake.take(_WAIT_S)
            if isinstance(taken, Delivery):
                batch.append(taken)
            if len(batch) == _BATCH or isinstance(taken, PhaseEnd):
                self._use(batch)
                batch = []
            if (taken is None or not batch) and self._trainers.leaving:  # once a batch, as a trainer looks
                break
        self._intake.close()

    def drain(self) -> None:
        """Leave what is in hand."""
        self._trainers.drain()

    def _use(self, batch: Sequence[Delivery]) -> None:
        arrays = [codec.decode(taken.value) for taken in batch if not taken.skipped]
        if self._trainers.collate and arrays:
            np.stack(arrays)
        self._intake.finish(batch)
        self.samples += len(arrays)

"""The trainer: one model, one stream of one job, from the first clip or the last checkpoint to the final one.

It waits until the job starts, finds the checkpoint to resume from, and runs a `Session`. It returns when the final
checkpoint is durable, when it is drained, or when the job ends; started again, it resumes. Each of several ranks is
such a trainer; rank 0 finds the checkpoint for all.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import closing

import torch

from essp_common.artifacts.checkpoint import Manifest
from essp_common.errors import DeviceLost, TransientError
from essp_common.learning.augment import evaluation_view, training_view
from essp_common.learning.inputs import layout_of
from essp_common.learning.models import starting_weights
from essp_common.learning.networks import network
from essp_common.messages.control import ENDED, ControlFeed
from essp_common.messages.ordered import Delivery, IntakeOptions, OrderedIntake
from essp_common.pb.v1.messages_pb2 import TRAIN, Control
from essp_common.planning.position import Position
from essp_common.runtime import ids
from essp_common.runtime.process import cpu_count
from essp_common.wiring import Adapters
from essp_trainer.assignment import Assignment
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore
from essp_trainer.checkpoints.checkpointer import Checkpointer, SavePolicy
from essp_trainer.config import TrainerConfig
from essp_trainer.data.device import Frames, choose_device
from essp_trainer.data.device_feed import DeviceFeed
from essp_trainer.data.prefetch import Prefetch, PrefetchOptions, View
from essp_trainer.distributed.consensus import Consensus, ControlSignal
from essp_trainer.distributed.ranks import RankLost, Ranks, SingleRank
from essp_trainer.learner import Learner
from essp_trainer.model.meter import Clock
from essp_trainer.reporter import Reporter
from essp_trainer.session import Session

log = logging.getLogger(__name__)

_WAIT_S = 0.5
_UNDER_WAY = frozenset({Control.START, Control.PAUSE, Control.RESUME})
_OVER = frozenset({Control.COMPLETE, Control.FAIL})


class Trainer:
    """Runs one training, or one rank of it."""

    def __init__(
        self,
        config: TrainerConfig,
        adapters: Adapters,
        control: ControlFeed,
        ranks: Ranks,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = ids.trainer_consumer(config.trainer)
        self._config = config
        self._adapters = adapters
        self._control = control
        self._ranks = ranks
        self._clock = clock
        self._draining = threading.Event()
        self._over = False

    @property
    def interrupted(self) -> bool:
        """Whether it was drained before the training was over."""
        return self._draining.is_set() and not self._over

    def run(self) -> None:
        """Wait for the job, train, leave. Reports to the master what makes the training impossible, then raises it."""
        try:
            command = self._await_start()
            if command is not None:
                self._run(command)
        finally:
            self._ranks.close()

    def drain(self) -> None:
        """Save between two batches, then let `run` return."""
        self._draining.set()

    def _run(self, command: Control) -> None:
        assignment = Assignment.of(command, self._config.trainer)
        interval_s = self._config.settings.report_interval_s
        reporter = Reporter(self._adapters.bus, assignment, self._config.worker, interval_s, self._clock)
        try:
            self._train(assignment, reporter)
        except (TransientError, RankLost) as error:
            if not self._draining.is_set():
                raise
            log.warning("%s: left without a checkpoint: %s", self.name, error)
        except torch.AcceleratorError as error:
            raise DeviceLost(
                f"the GPU failed ({error}); start the trainer again, and it resumes from its last checkpoint"
            ) from error
        except Exception as error:
            reporter.failed(error)
            raise

    def _await_start(self) -> Control | None:
        """The command that starts or resumes the job; None if the trainer is drained first or the job is over."""
        log.info("%s: waiting until job %s starts", self.name, self._config.job)
        while not self._draining.is_set():
            if self._control.state(self._config.job) in _OVER:
                self._over = True
                return None
            command = self._control.wait(self._config.job, _WAIT_S, _UNDER_WAY)
            if command is not None:
                return command
        return None

    def _train(self, assignment: Assignment, reporter: Reporter) -> None:
        training, settings = assignment.training, self._config.settings
        ranks = settings.local_trainers * self._config.local_ranks
        torch.set_num_threads(training.threads or max(1, cpu_count() // ranks))
        device = choose_device(training.device, self._config.local_rank, settings.deterministic)
        checkpoint_store = CheckpointStore(self._adapters.stores.under(assignment.spec.output), assignment)
        latest = self._latest(checkpoint_store)
        if latest is not None and latest.final:
            if self._ranks.is_rank_zero:
                reporter.checkpoint(latest, checkpoint_store.uri(latest), checkpoint_store.scores_uri(latest))
            self._over = True
            return
        network(training.model)  # refuse an unknown name now, not when the first clip shows the input's shape
        start = Position(0, 0) if latest is None else latest.position
        intake = OrderedIntake(
            self._adapters.bus, self._adapters.cache, self._intake_options(assignment), assignment.phases, start
        )
        damaged = None if latest is None else checkpoint_store.lost_until(latest)
        if damaged is not None:
            intake.request_rebuild_range(start, damaged)
        policy = SavePolicy(settings.save_retry_s, settings.final_save_timeout_s)
        with (
            closing(DeviceFeed(self._prefetch(assignment, intake, start), device, assignment.trainer)) as device_feed,
            closing(
                Checkpointer(checkpoint_store, intake, reporter, self._ranks, policy, self._leaving, self._clock)
            ) as checkpointer,
        ):
            weights = None if latest is not None else starting_weights(self._adapters.stores, training.weights)
            learner = Learner(assignment, checkpoint_store, device, self._ranks, weights)
            consensus = Consensus(self._ranks, self._signal, training.batch_size)
            session = Session(assignment, device_feed, learner, checkpointer, checkpoint_store, reporter, consensus)
            if latest is not None:
                session.resume(latest)
            session.run()
            self._over = session.over

    def _latest(self, checkpoint_store: CheckpointStore) -> Manifest | None:
        """The newest whole checkpoint, from which all ranks resume; rank 0 finds it."""
        found = checkpoint_store.latest() if self._ranks.is_rank_zero else None
        document = self._ranks.broadcast(b"" if found is None else found.model_dump_json().encode())
        return Manifest.model_validate_json(document) if document else None

    def _leaving(self) -> bool:
        return self._signal() is ControlSignal.LEAVE

    def _signal(self) -> ControlSignal:
        state = self._control.state(self._config.job)
        if self._draining.is_set() or state in ENDED or state == Control.DRAIN:
            return ControlSignal.LEAVE
        return ControlSignal.PAUSE if state == Control.PAUSE else ControlSignal.CONTINUE

    def _intake_options(self, assignment: Assignment) -> IntakeOptions:
        return IntakeOptions(
            job=assignment.job,
            consumer=assignment.consumer,
            stream=assignment.training.stream,
            feature=assignment.stream.feature,
            worker=self._config.worker,
            fence=assignment.fence,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
        )

    def _prefetch(self, assignment: Assignment, intake: OrderedIntake, start: Position) -> Prefetch:
        settings = self._config.settings
        batch_size = assignment.training.batch_size
        options = PrefetchOptions(
            batch_size=batch_size,
            ahead=settings.prefetch_batches * math.ceil(batch_size / self._ranks.world_size),
            loaders=settings.loaders,
            wanted_frames=assignment.stream.params.get("frames", 1) if assignment.stream.feature == "rgb" else None,
            name=assignment.trainer,
        )
        return Prefetch(intake, assignment.phases, start, _view(assignment), options)


def build(config: TrainerConfig, adapters: Adapters, control: ControlFeed, ranks: Ranks | None = None) -> Trainer:
    """A trainer for one training of one job; `ranks` connects it with the others, if there are any."""
    return Trainer(config, adapters, control, ranks or SingleRank())


def _view(assignment: Assignment) -> View:
    """What the model sees of a clip: a random crop while training, centre crops otherwise."""
    augment, layout = assignment.training.augment, layout_of(assignment.stream.feature)

    def view(item: Delivery, frames: Frames) -> Frames:
        if item.clip.purpose != TRAIN:
            return evaluation_view(frames, augment.crop, augment.evaluation_crops, layout)
        return training_view(frames, augment, layout, *assignment.identity, item.clip.epoch, item.clip.index)

    return view

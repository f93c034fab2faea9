"""The trainer: one model, one stream of one job, from the first clip or the last checkpoint to the final one.

It waits until the job starts, takes the training over from its previous owner, with the checkpoint to resume from, and
runs a `Session`. It returns when the final checkpoint is durable, when it is drained, or when the job ends; if started
again, it resumes. With several ranks, each is such a trainer; rank 0 owns the training and finds the checkpoint for
all.

If the job gets more epochs or trainers in the meantime, its run ends and another one follows (docs/decisions/0066). The
trainer saves, reports that it has left, waits for the next run, and resumes in it as a newly started process would.

If another process with the same name takes over the training, this one leaves with `Fenced` and does not report a
failure: the job continues with the other one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import torch

from essp_common import topics
from essp_common.artifacts.checkpoint import Found
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.staging import parse_burst
from essp_common.errors import ConfigError, DeviceLost, EsspError, Fenced, TransientError, Unavailable
from essp_common.job.position import Position
from essp_common.messages.control import ENDED, ControlFeed, ends_for_next, run_of
from essp_common.messages.snapshot import completed
from essp_common.objects.port import NoBucket
from essp_common.pb.v1.messages_pb2 import Change, Control, Progress, TrainerLeft
from essp_common.runtime import ids
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.retry import retry_transient
from essp_common.validation import suggested
from essp_common.wiring import Adapters
from essp_engine.intake.fetch_processes import FetchProcesses
from essp_engine.intake.ordered import IntakeOptions, OrderedIntake
from essp_engine.intake.wanted import in_flight
from essp_engine.learning.losses import loss
from essp_engine.learning.models import StartingWeights, starting_weights
from essp_engine.learning.networks import network
from essp_engine.loading.batch import View
from essp_engine.loading.device import choose_device
from essp_engine.loading.device_feed import DeviceFeed
from essp_engine.loading.prefetch import Prefetch, PrefetchOptions
from essp_trainer.assignment import Assignment
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore
from essp_trainer.checkpoints.checkpointer import Checkpointer, SavePolicy, Unsaved
from essp_trainer.checkpoints.interval import Interval
from essp_trainer.checkpoints.owner_watch import OwnerWatch
from essp_trainer.config import TrainerConfig
from essp_trainer.distributed.consensus import Consensus, ControlSignal
from essp_trainer.distributed.ranks import RankLost, Ranks, SingleRank
from essp_trainer.learner import Learner
from essp_trainer.model.meter import Clock
from essp_trainer.releases import Releases
from essp_trainer.reporter import Reporter
from essp_trainer.session import Session
from essp_trainer.views import views

log = logging.getLogger(__name__)

_WAIT_S = 0.5
_LOOK_S = 0.1
"""Interval at which a trainer that has left a run checks for the next one."""
_MORE_PATIENCE = 6
"""Each warning comes after this many times the previous wait."""
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
        self._ended = False
        """Whether the job has ended: nothing continues the training."""
        self._in = 0
        """The run of the job that it is in, or was in last; 0 if none yet."""
        self._left = 0
        """The fence of the command for which it reported that it has left a run."""
        self._checkpoint_store: CheckpointStore | None = None
        self._owner_watch: OwnerWatch | None = None
        """On rank 0, while it trains."""

    @property
    def interrupted(self) -> bool:
        """Whether it has left a training that is not finished, because it or another rank was drained."""
        return not self._over and not self._ended

    def run(self) -> None:
        """Wait for the job, train, leave. Reports errors that make the training impossible to the master, then raises
        them."""
        try:
            while (command := self._await_start()) is not None:
                # Synchronisation point: ranks may see commands at different times; all enter the run that rank 0 has
                # seen.
                command = Control.FromString(self._ranks.broadcast(command.SerializeToString()))
                self._in = run_of(command)
                if not self._run(command) or not self._goes_on():
                    return
        except RankLost:
            if not self._draining.is_set():  # otherwise the other ranks were drained as well, and left before this one
                raise
        finally:
            self._ended = self._control.state(self._config.job) in ENDED
            self._ranks.close()

    def drain(self) -> None:
        """Save between two batches, then make `run` return."""
        self._draining.set()

    def _run(self, started: Control) -> bool:
        """Train in a run of the job. Returns False if this rank was drained and may be out of step with the others."""
        command = retry_transient(lambda: completed(started, self._adapters.stores), self._leaving)
        assignment = Assignment.of(command, self._config.trainer, self._config.settings.code)
        interval_s = self._config.settings.report_interval_s
        reporter = Reporter(self._adapters.bus, assignment, self._config.worker, interval_s, self._clock)
        self._over = False
        try:
            self._train(assignment, reporter)
        except (TransientError, RankLost) as error:
            goes_on = isinstance(error, Unsaved) and self._knows_of_next()
            if not self._draining.is_set() and not goes_on:
                raise
            log.warning("%s: left without a checkpoint: %s", self.name, error)
            return goes_on
        except NoBucket as error:
            # The master has written there, so the bucket is gone for a while: this process has started meanwhile.
            reporter.trouble(f"{error}; the training starts again until the bucket is there")
            raise Unavailable(str(error)) from error
        except torch.AcceleratorError as error:
            raise DeviceLost(
                f"the GPU failed ({error}); start the trainer again, and it resumes from its last checkpoint"
            ) from error
        except Fenced as error:
            log.error("%s: %s", self.name, error)
            raise
        except Exception as error:
            self._refuse_if_overtaken(error)
            reporter.failed(error)
            raise
        finally:
            self._owner_watch = None
            if self._checkpoint_store is not None:
                self._checkpoint_store.close()
                self._checkpoint_store = None
        return True

    def _refuse_if_overtaken(self, error: Exception) -> None:
        """Raise `Fenced` instead of an error of a process that no longer owns the training: the job is not at fault."""
        try:
            if self._checkpoint_store is not None:
                self._checkpoint_store.check_owner()
        except Fenced as fenced:
            log.error("%s: %s; its own error was: %s", self.name, fenced, error)
            raise fenced from error
        except EsspError as unknown:
            log.warning("%s: it is not known who owns the training: %s", self.name, unknown)

    def _await_start(self) -> Control | None:
        """Return the command that starts or resumes the job, in a run that this trainer was not in yet; None if it is
        drained first or the job is over."""
        log.info("%s: waiting until job %s %s", self.name, self._config.job, "resumes" if self._in else "starts")
        began, patience_s = self._clock(), self._config.settings.start_warning_s
        while not self._draining.is_set():
            waited_s = self._clock() - began
            if waited_s >= patience_s and not self._over:
                patience_s *= _MORE_PATIENCE
                log.warning("%s: %s", self.name, self._waits_for(waited_s))
            state = self._control.state(self._config.job)
            if state in _OVER or (self._in and state in ENDED):
                self._over = self._over or state in _OVER
                return None
            command = self._control.wait(self._config.job, _WAIT_S, _UNDER_WAY)
            if command is None:
                continue
            if not ends_for_next(command) and run_of(command) > self._in:
                return command
            self._tell_of_leave(command)
            self._draining.wait(_LOOK_S)
        return None

    def _tell_of_leave(self, command: Control) -> None:
        """Report to the master, once for this command, that nothing of this training is under way."""
        if not ends_for_next(command) or command.fence == self._left or not self._ranks.is_rank_zero:
            return
        left = Progress(
            job=command.job,
            worker=self._config.worker,
            fence=command.fence,
            left=TrainerLeft(trainer=self._config.trainer),
        )
        try:
            self._adapters.bus.publish(topics.PROGRESS, command.job.encode(), left.SerializeToString())
            self._adapters.bus.flush()
        except TransientError as error:
            log.warning("%s: reporting again that it has left: %s", self.name, error)
            return
        self._left = command.fence

    def _goes_on(self) -> bool:
        """Whether another run of the job follows in which this trainer takes part. All ranks return True if one knows
        of it."""
        return b"1" in self._ranks.all_gather(b"1" if self._knows_of_next() else b"0")

    def _knows_of_next(self) -> bool:
        command = self._control.latest(self._config.job)
        if command is None or self._draining.is_set() or command.command not in _UNDER_WAY:
            return False
        stays = self._over and self._config.stays
        return ends_for_next(command) or run_of(command) > self._in or stays

    def _waits_for(self, waited_s: float) -> str:
        """Describe what it has been waiting for, and what a person may do about it."""
        job, known = self._config.job, self._control.jobs()
        started = f"start it with `essp job start`, or end this process; it has waited for {waited_s:.0f} s"
        if job in known and ends_for_next(known[job]):
            return f"job {job} is about to continue with more epochs or trainers; it has waited for {waited_s:.0f} s"
        if job in known:
            return f"job {job} does not run: its last command was {_command(known[job])}; {started}"
        others = suggested(job, known, "jobs of this bus: ")
        return f"no master has started a job {job}; {others}; check --job and ESSP_BUS, {started}"

    def _train(self, assignment: Assignment, reporter: Reporter) -> None:
        training, settings = assignment.training, self._config.settings
        ranks = settings.local_trainers * self._config.local_ranks
        torch.set_num_threads(training.threads or max(1, cpu_count() // ranks))
        try:
            wanted = "cpu" if training.is_encoder else training.device
            device = choose_device(wanted, self._config.local_rank, settings.deterministic)
        except ConfigError as error:
            problem = f"{error.problem}; worker {self._config.worker}"
            raise ConfigError(problem, field=f"trainers.{assignment.trainer}.{error.field}", code=error.code) from error
        burst = parse_burst(settings.burst) if settings.burst else None
        checkpoint_store = CheckpointStore(self._adapters.stores.under(assignment.spec.output), assignment, burst)
        self._checkpoint_store = checkpoint_store
        if not training.is_encoder:
            network(
                training.model, settings.code
            )  # refuse an unknown name now, not when the first clip shows the input's shape
        loss(training.loss, code=settings.code)
        # Synchronisation point: all ranks resume from the checkpoint that rank 0 has found.
        found = self._claim(checkpoint_store)
        latest = found.manifest
        if latest is not None and latest.final:
            if self._ranks.is_rank_zero:
                ready = checkpoint_store.message(latest)
                retry_transient(lambda: reporter.checkpoint(ready), self._leaving)
            self._over = True
            return
        damaged = checkpoint_store.lost_until(found)
        with self._watching(checkpoint_store):
            stopped = self._session(assignment, reporter, checkpoint_store, device, latest, damaged)
            if stopped is not None:
                self._session(assignment, reporter, checkpoint_store, device, stopped, None)

    def _session(
        self,
        assignment: Assignment,
        reporter: Reporter,
        checkpoint_store: CheckpointStore,
        device: torch.device,
        latest: Manifest | None,
        damaged: Position | None,
    ) -> Manifest | None:
        """Train until the end, or until the signal is to leave. If the training has stopped early, returns the
        checkpoint from which to resume at once.

        `latest`: the checkpoint to resume from; None: start from scratch. `damaged`: clips before this position must be
        rebuilt.
        """
        training, settings = assignment.training, self._config.settings
        start = Position(0, 0)
        if latest is not None:
            start = assignment.begins_at(latest)
            self._tell_of_stop(assignment, reporter, latest)
        view, device_views = views(assignment, settings.views, device)
        options = self._intake_options(assignment, view)
        intake = OrderedIntake(self._adapters.bus, self._adapters.cache, options, assignment.phases, start)
        if damaged is not None:
            retry_transient(partial(intake.request_rebuild_range, start, damaged), self._leaving)
        policy = SavePolicy(settings.save_retry_s, settings.final_save_timeout_s)
        share = training.checkpoint.overhead
        interval = Interval(share, self._clock) if share and self._ranks.is_rank_zero else None
        with (
            closing(
                DeviceFeed(self._prefetch(assignment, intake, start), device, assignment.trainer, device_views)
            ) as device_feed,
            closing(Releases(intake, self._leaving, assignment.trainer)) as releases,
            closing(
                Checkpointer(
                    checkpoint_store, releases, reporter, self._ranks, policy, self._leaving, self._clock, interval
                )
            ) as checkpointer,
        ):
            weights = None if latest is not None else self._starting_weights(training.weights)
            learner = Learner(assignment, checkpoint_store, device, self._ranks, weights)
            consensus = Consensus(self._ranks, self._signal, training.batch_size, self._changes)
            session = Session(
                assignment,
                device_feed,
                releases,
                learner,
                checkpointer,
                checkpoint_store,
                reporter,
                consensus,
                self._adapters.cache,
            )
            if latest is not None:
                session.resume(latest)
                self._tell_of_resume(assignment, reporter, checkpoint_store, latest)
            session.run()
            self._over = session.over
            return checkpointer.saved if session.stops else None

    def _tell_of_stop(self, assignment: Assignment, reporter: Reporter, latest: Manifest) -> None:
        """Report to the master that the training has stopped early, if it has. This must happen before any rank drops a
        clip of the remaining epochs, which the master would take for trained."""
        stop = assignment.stop_at(latest)
        if stop is None:
            return
        if self._ranks.is_rank_zero:
            log.info("%s: %s", assignment.trainer, stop.words)
            retry_transient(lambda: reporter.stopped(latest.position, stop), self._leaving)
        # Synchronisation point: no rank continues before the report is published.
        self._ranks.broadcast(b"")

    def _tell_of_resume(
        self, assignment: Assignment, reporter: Reporter, checkpoint_store: CheckpointStore, latest: Manifest
    ) -> None:
        """Report to the master the checkpoint from which this training resumes. It may cover more than the master
        knows: no one takes the clips before it again, and messages about some may be lost. A training that has stopped
        early has already reported that."""
        if self._ranks.is_rank_zero and assignment.stop_at(latest) is None:
            ready = checkpoint_store.message(latest)
            ready.resumed = True
            retry_transient(lambda: reporter.checkpoint(ready), self._leaving)

    def _starting_weights(self, uri: str | None) -> StartingWeights | None:
        code = self._config.settings.code
        return retry_transient(lambda: starting_weights(self._adapters.stores, uri, code), self._leaving)

    def _claim(self, checkpoint_store: CheckpointStore) -> Found:
        """Take ownership of the training on rank 0, and return to all ranks the checkpoint to resume from."""
        document = b""
        if self._ranks.is_rank_zero:
            found = retry_transient(lambda: checkpoint_store.claim(self._config.worker), self._leaving)
            text = "" if found.manifest is None else found.manifest.model_dump_json()
            document = f"{found.lost_until} {text}".encode()
        lost_until, _, manifest = self._ranks.broadcast(document).partition(b" ")
        return Found(Manifest.model_validate_json(manifest) if manifest else None, int(lost_until))

    @contextmanager
    def _watching(self, checkpoint_store: CheckpointStore) -> Iterator[None]:
        """Leave soon if another process takes over the training within this block."""
        if not self._ranks.is_rank_zero:
            yield
            return
        with closing(OwnerWatch(checkpoint_store.check_owner, self._config.settings.owner_check_s)) as watch:
            self._owner_watch = watch
            yield
            if watch.fenced is not None:
                raise watch.fenced

    def _leaving(self) -> bool:
        return self._signal() is ControlSignal.LEAVE

    def _signal(self) -> ControlSignal:
        command = self._control.latest(self._config.job)
        if command is not None and (ends_for_next(command) or run_of(command) > self._in):
            return ControlSignal.LEAVE
        state = self._control.state(self._config.job)
        fenced = self._owner_watch is not None and self._owner_watch.fenced is not None
        if fenced or self._draining.is_set() or state in ENDED or state == Control.DRAIN:
            return ControlSignal.LEAVE
        return ControlSignal.PAUSE if state == Control.PAUSE else ControlSignal.CONTINUE

    def _changes(self) -> Sequence[Change]:
        """Return the known changes of the job."""
        command = self._control.latest(self._config.job)
        return () if command is None else command.changes

    def _intake_options(self, assignment: Assignment, view: View) -> IntakeOptions:
        settings = self._config.settings
        at_once = settings.fetch_processes or settings.fetches
        fetches, read = in_flight(assignment.spec.clip, assignment.stream, settings.cache, at_once)
        processes = settings.fetch_processes if fetches else 0
        return IntakeOptions(
            job=assignment.job,
            consumer=assignment.consumer,
            stream=assignment.training.stream,
            feature=assignment.stream.feature,
            worker=self._config.worker,
            fence=assignment.fence,
            since=assignment.since,
            run_of=partial(self._control.run_of, assignment.job),
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            fetches=fetches,
            read=read,
            prepare=view,
            set_up_thread=partial(torch.set_num_threads, 1),
            elsewhere=FetchProcesses.of(processes, settings.cache, settings.tenant, read, view),
            fits=assignment.fits,
        )

    def _prefetch(self, assignment: Assignment, intake: OrderedIntake, start: Position) -> Prefetch:
        options = PrefetchOptions(
            batch_size=assignment.training.batch_size,
            batches_ahead=self._config.settings.prefetch_batches,
            name=assignment.trainer,
            set_up_thread=partial(torch.set_num_threads, 1),
        )
        return Prefetch(intake, assignment.phases, start, options)


def build(config: TrainerConfig, adapters: Adapters, control: ControlFeed, ranks: Ranks | None = None) -> Trainer:
    """Return a trainer for one training of one job. `ranks`: connects it with the other ranks, if there are any."""
    return Trainer(config, adapters, control, ranks or SingleRank())


def _command(control: Control) -> str:
    return Control.Command.Name(control.command)

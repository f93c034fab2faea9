"""One training, through all phases of its job.

    TRAIN 0 ▶ checkpoint ▶ VALIDATION 0 ▶ scores, best? ▶ TRAIN 1 ▶ ... ▶ EMBED, TEST, by the best ▶ final checkpoint
                                                   └── early stop ▶ checkpoint ▶ a new session ──▲

The step, in order (`Session.run`; * marks points at which all ranks synchronise):

    1  `_next`             the next batch of this rank, or the end of the phase     essp_engine/loading/device_feed.py
    2  `Consensus.agree`   * what all ranks do next: one all-reduce                 distributed/consensus.py
    3  `settle`            * the result of finished checkpoints; commits messages   checkpoints/checkpointer.py
    4  `_take_changes`     * changes of the running job                             model/rates.py
    5  `_save_and_leave`   * if the signal is to leave: save, return                checkpoints/checkpointer.py
    6  `_begin_save`       * a checkpoint that is due (`overhead`, or a retry)      checkpoints/checkpointer.py
    7  `Training.step`     * forward, backward, summed gradients, update            learner.py, model/training.py
    8  `defer_commit`      keep the messages until a checkpoint covers the clips    checkpoints/checkpointer.py
    9  `release`           free the bytes, report the clips as done                 releases.py
    10 `_report_step`      live metrics, from rank 0                                reporter.py
    11 `_begin_save`       * a checkpoint, every `checkpoint.every` clips           checkpoints/checkpointer.py

In a validation or test phase, `Learner.evaluate` replaces step 7. At the end of a phase, `_end_phase` replaces steps 7
to 11.

EMBED exists if aggregation strategies learn from features: the features of its clips, and of the TEST clips, go into
the frame cache for the aggregator. Nothing is saved between the two phases, so a trainer that leaves there computes
both again: what it put into a cache in its own memory is gone with it.

Rank 0 alone writes and reports. After each batch the trainer frees the bytes of its clips and reports them as done. It
commits their messages only when a checkpoint covers what it learned from them. So a trainer that dies resumes from its
last checkpoint and receives everything again that it had trained since. An interrupted evaluation starts again at its
first clip.

A checkpoint begins at the end of each TRAIN phase, and within it every `checkpoint.every` clips, or at the interval
that `checkpoint.overhead` allows. It is written while training continues, unless `checkpoint.parallel` is off. The
session waits for it when the job pauses, before it calls weights the best, and before it leaves (drain, stop). A
checkpoint always shows a moment between two batches.

A fit to all clips of a TRAIN phase, at its end, may take minutes. A trainer that leaves meanwhile saves the state
before the fit, and the next session starts the fit again, without clips; a pause suspends it.

A training that stops early (`artifacts/early_stop.py`) saves at its position, and the session ends. The next session
resumes from there as after any interruption, finds that the training has stopped, and begins with the phases after all
epochs. So a new intake drops the clips that were on their way for the remaining epochs, like those of another run; and
the checkpoint names the position at which training would continue if the job got more patience.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from essp_common.artifacts import scores
from essp_common.artifacts.clip_features import store_features
from essp_common.artifacts.early_stop import is_better
from essp_common.artifacts.manifest import Best, Manifest, PhaseRecord
from essp_common.cache.port import FrameCache
from essp_common.errors import PermanentError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import EMBED, TRAIN, VALIDATION, PhasePlan
from essp_common.runtime import tracing
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import retry_transient
from essp_engine.encoders.fitting import Tell, silent
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.loading.batch import Batch
from essp_engine.loading.device_feed import DeviceFeed
from essp_engine.planning.digest import joined
from essp_trainer.assignment import Assignment, purpose_name
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, TrainingState
from essp_trainer.checkpoints.checkpointer import Checkpointer, Unsaved
from essp_trainer.distributed.consensus import Agreement, Consensus, ControlSignal
from essp_trainer.learner import Learner
from essp_trainer.model.chance import no_better_than_chance
from essp_trainer.model.evaluation import clip_and_video_figures
from essp_trainer.model.fits import FitLeft
from essp_trainer.model.meter import Meter
from essp_trainer.model.step_result import StepResult
from essp_trainer.releases import Releases
from essp_trainer.reporter import Reporter

log = logging.getLogger(__name__)

_NEXT_S = 0.2

T = TypeVar("T")


class Session:
    """Trains, evaluates and saves until all phases are done or the control signal is to leave."""

    def __init__(
        self,
        assignment: Assignment,
        device_feed: DeviceFeed,
        releases: Releases,
        learner: Learner,
        checkpointer: Checkpointer,
        checkpoint_store: CheckpointStore,
        reporter: Reporter,
        consensus: Consensus,
        cache: FrameCache,
    ) -> None:
        """`cache`: where features of clips go, if the job needs them."""
        self._cache = cache
        self._assignment = assignment
        self._device_feed = device_feed
        self._releases = releases
        self._learner = learner
        self._checkpointer = checkpointer
        self._checkpoint_store = checkpoint_store
        self._reporter = reporter
        self._consensus = consensus
        self._ranks = consensus.ranks
        self._clock = reporter.clock
        self._state = TrainingState(origin=learner.origin)
        self.stops = False
        """Whether the training stops early here. A new session, resumed from its checkpoint, must follow."""
        self._stopped = False
        """Whether it stopped early before, and only the phases after all epochs are left."""
        self._meter = Meter(self._clock)
        self._next_item: Batch | PhaseEnd | None = None
        self._evaluated = 0
        """Digest of the clips of the current evaluation; not saved, since an interrupted evaluation starts again."""

    def resume(self, manifest: Manifest) -> None:
        """Resume from a checkpoint. Raises `ConfigError` if it belongs to another training."""
        self._learner.resume(manifest)
        self._retry(lambda: self._checkpoint_store.load(manifest, self._learner.training))
        self._state = self._checkpoint_store.state_of(manifest)
        if not self._ranks.is_rank_zero:
            self._state.digest = 0  # rank 0 accounts for the clips before the checkpoint
        self._meter = Meter.of(self._state.running, self._clock)
        self._checkpointer.saved = manifest
        if self._ranks.is_rank_zero and 0 != manifest.clips != self._assignment.clips != 0:
            warning = (
                f"{self._checkpoint_store.uri(manifest)} was made with other videos, or labels of them, than the "
                "catalog now has: training continues with these, and its figures before and after cannot be compared"
            )
            log.warning("%s: %s", self._assignment.trainer, warning)
            self._retry(lambda: self._reporter.trouble(warning))
        if self._assignment.stop_at(manifest) is not None:
            self._stopped = True
            self._meter, self._state.running = Meter(self._clock), {}
            self._state.position = self._assignment.begins_at(manifest)

    def run(self) -> None:
        """Run until all phases are done, the training stops early, or the signal is to leave.

        Raises `Unsaved` if it leaves without a checkpoint.
        """
        while not self.over:
            if self.stops:
                self._checkpointer.save_last(self._learner.training, self._current_state())
                return
            # Every branch below depends only on the agreement and on state that is equal on all ranks, so that all
            # ranks enter the same collective operations in the same order.
            agreement, waited_s = self._next()
            if agreement.written:
                self._checkpointer.settle()
            if agreement.changes > self._learner.rates.seen:
                self._take_changes()
            if agreement.signal is ControlSignal.LEAVE and self._between_batches():
                self._save_and_leave()
                return
            if agreement.save and self._between_batches():
                self._begin_save()
            if agreement.ready:
                try:
                    self._take_item(agreement, waited_s)
                except FitLeft:
                    self._save_and_leave()
                    return
            elif agreement.signal is ControlSignal.PAUSE:
                self._meter.leave_out(waited_s)
                self._checkpointer.count_step(False)
                if self._between_batches() and not self._checkpointer.failing:  # otherwise `due` says when to try again
                    self._save()
            else:
                self._meter.waited_s += waited_s
                self._report_step(self._assignment.phases[self._state.position.phase_index])
        self._checkpointer.finish(self._learner.training, self._state)

    @property
    def over(self) -> bool:
        """Whether all phases are done."""
        return self._state.position == self._assignment.end

    def _next(self) -> tuple[Agreement, float]:
        """Return what all ranks do next, and how long the model waited for it."""
        asked = self._clock()
        if self._next_item is None:
            self._next_item = self._device_feed.next(_NEXT_S)
        # Synchronisation point, in every iteration: a rank whose item is not there yet takes part without one, and then
        # no rank takes its item.
        agreement = self._consensus.agree(self._next_item, self._checkpointer.due, self._checkpointer.written)
        return agreement, self._clock() - asked

    def _take_changes(self) -> None:
        """Apply users' changes of the job from the next batch. They are reported to the master before any checkpoint
        contains them."""
        taken = self._learner.rates.take(self._consensus.changes(), self._state.position)
        self._state.changes = self._learner.rates.taken
        if self._ranks.is_rank_zero:
            for change in taken:
                log.info("%s: change %d counts from %s on", self._assignment.trainer, change.number, change.place)
                self._retry(partial(self._reporter.change_taken, change))

    def _take_item(self, agreement: Agreement, waited_s: float) -> None:
        item, self._next_item = self._next_item, None
        if isinstance(item, Batch):
            self._meter.waited_s += waited_s
            self._process(item, agreement)
        elif item is not None:
            self._end_phase(item.plan)

    def _between_batches(self) -> bool:
        """Whether a checkpoint may be made here.

        Not between the last clip of a phase and the phase's end: the end needs no clip, so both positions would be
        saved alike, under the same name.
        """
        position = self._state.position
        return position.index < self._assignment.phases[position.phase_index].clips

    def _process(self, batch: Batch, agreement: Agreement) -> None:
        began_s = self._clock()
        if not agreement.share.clips:
            self._meter.pass_over(batch.stop)
        if batch.plan.purpose == TRAIN:
            # Synchronisation point: a rank without a clip of this batch trains too, since the others sum its gradients.
            if agreement.share.clips:
                self._meter.add(self._learner.train(batch, agreement.share, agreement.shape), batch.stop)
            self._state.position = batch.position
            self._state.epoch = batch.plan.epoch
            self._state.digest = joined([self._state.digest, batch.digest()])
        elif agreement.share.clips:
            best = self._state.best if batch.plan.purpose != VALIDATION else None
            # Ranks score their clips independently; only the sums of loss and accuracy synchronise.
            result = self._retry(lambda: self._learner.evaluate(batch, best))
            self._meter.add(self._of_all_ranks(result), batch.stop)
            self._evaluated = joined([self._evaluated, batch.digest()])
        failpoint("trainer.trained")
        if tracing.traces():
            name = "train" if batch.plan.purpose == TRAIN else "evaluate"
            for item in batch.clips:
                tracing.span(name, item.clip, self._clock() - began_s, trainer=self._assignment.trainer)
        # Only the bytes are freed now. The messages stay uncommitted until a checkpoint covers the clips.
        self._checkpointer.defer_commit(batch.items)
        self._releases.release(batch.items)
        self._report_step(batch.plan)
        self._checkpointer.count_step(batch.plan.purpose == TRAIN)
        if batch.plan.purpose == TRAIN and self._many_unsaved() and self._between_batches():
            self._begin_save()

    def _save_and_leave(self) -> None:
        if not self._save():
            raise Unsaved("left without saving a checkpoint; training will resume from the last one")

    def _many_unsaved(self) -> bool:
        """Whether `checkpoint.every` asks for a checkpoint.

        While saves fail, the checkpointer decides when to retry.
        """
        every, clips_before = self._assignment.training.checkpoint.every, self._assignment.clips_before
        if not every or self._checkpointer.failing:
            return False
        return clips_before(self._state.position) - clips_before(self._checkpointer.newest) >= every

    def _end_phase(self, plan: PhasePlan) -> None:
        # The metrics of the phase must include its last step, which a GPU may still be computing.
        self._meter.settle()
        self._checkpointer.count_step(False)
        self._report_step(plan, last=True)
        metrics = self._end_training(plan) if plan.purpose == TRAIN else self._end_evaluation(plan)
        # Synchronisation point. Times differ between ranks, so all adopt rank 0's metrics, and decide alike about the
        # best weights and an early stop.
        metrics = json.loads(self._ranks.broadcast(json.dumps(metrics | self._meter.pace()).encode()))
        if plan.purpose == VALIDATION:
            self._update_best(metrics)
        self._state.position = Position(self._state.position.phase_index + 1, 0)
        self._state.digest, self._evaluated = joined([self._state.digest, self._evaluated]), 0
        self._state.history.append(PhaseRecord(purpose=purpose_name(plan.purpose), epoch=plan.epoch, metrics=metrics))
        self._meter = Meter(self._clock)
        if plan.purpose == TRAIN:
            self._begin_save()
        elif self._state.position < self._assignment.rest:
            self.stops = self._assignment.stop_of(self._state.history) is not None
        if self._ranks.is_rank_zero:
            self._checkpointer.attempt("the history", lambda: self._checkpoint_store.write_history(self._state))
            self._retry(lambda: self._reporter.phase_over(plan, metrics))

    def _end_training(self, plan: PhasePlan) -> dict[str, float]:
        if not self._meter.clips:
            raise PermanentError(f"no clip of training epoch {plan.epoch + 1} could be decoded")
        learned = self._learner.end_epoch(self._watched_fit(plan))
        if learned is not None:
            return {"loss": learned.loss, "top1": learned.correct / learned.clips}
        rate = self._learner.rates.at(plan, 0)
        warning = no_better_than_chance(self._assignment, self._meter.loss, plan.epoch)
        if warning and self._ranks.is_rank_zero:
            log.warning("%s: %s", self._assignment.trainer, warning)
            self._retry(lambda: self._reporter.trouble(warning))
        return {"loss": self._meter.loss, "top1": self._meter.top1, "lr": rate}

    def _watched_fit(self, plan: PhasePlan) -> Tell:
        """Return a callback that reports the progress of a fit. It raises `FitLeft` if the signal is to leave, and
        blocks while it is to pause."""
        held_s = 0.0
        tell: Tell = silent
        if self._ranks.is_rank_zero:
            tell = self._reporter.fit(plan, self._meter, lambda: self._clock() - held_s)

        def watch(what: str, done: int, most: int) -> None:
            nonlocal held_s
            began_s = self._clock()
            while (signal := self._consensus.signal()) is ControlSignal.PAUSE:
                time.sleep(_NEXT_S)
            if signal is ControlSignal.LEAVE:
                raise FitLeft
            waited_s = self._clock() - began_s
            held_s += waited_s
            self._meter.leave_out(waited_s)
            tell(what, done, most)

        return watch

    def _end_evaluation(self, plan: PhasePlan) -> dict[str, float]:
        """Return the metrics of a phase, on rank 0 only, which joins the scores of all ranks."""
        own = self._learner.finish_evaluation()
        if own is None:
            raise PermanentError(f"no clip of the {purpose_name(plan.purpose)} phase could be decoded")
        # Synchronisation point: rank 0 needs the scores of all ranks.
        parts = self._ranks.all_gather(scores.packed(own))
        if not self._ranks.is_rank_zero:
            return {}
        table = scores.joined([scores.unpacked(part) for part in parts])
        if self._assignment.embeds(plan):
            assignment, purpose = self._assignment, purpose_name(plan.purpose)
            store_features(self._cache, assignment.job, assignment.trainer, purpose, table, self._retry)
        self._checkpointer.attempt("scores", lambda: self._checkpoint_store.write_scores(plan, table))
        failpoint("trainer.scored")
        return clip_and_video_figures(table)

    def _update_best(self, metrics: dict[str, float]) -> None:
        """Record the validated weights as the best so far, if they are and can be saved."""
        best = self._state.best
        if not is_better(metrics, None if best is None else best.metrics, self._assignment.training.choose):
            return
        # The best weights must exist as a checkpoint, so this waits for one.
        saved = self._checkpointer.saved if self._save() else None
        if saved is not None:
            self._state.best = Best(step=saved.step, epoch=self._state.epoch, metrics=metrics)

    def _save(self) -> bool:
        """Make a checkpoint unless the last one contains everything. Returns False if that failed."""
        if not self._learner.has_model or self._stopped or self._has_embedded():
            return True
        return self._checkpointer.save(self._learner.training, self._current_state())

    def _has_embedded(self) -> bool:
        """Whether EMBED is over, but the training is not."""
        before = self._state.position.phase_index - 1
        return before >= 0 and self._assignment.phases[before].purpose == EMBED

    def _begin_save(self) -> None:
        """Begin a checkpoint, which is written while training continues, unless the job says otherwise."""
        if self._stopped or self._has_embedded():
            return
        if self._assignment.training.checkpoint.parallel == "off":
            self._save()
        elif self._learner.has_model:
            self._checkpointer.begin(self._learner.training, self._current_state())

    def _current_state(self) -> TrainingState:
        self._meter.settle()
        self._state.running = self._meter.sums() if self._state.position.index else {}
        return self._state

    def _report_step(self, plan: PhasePlan, last: bool = False) -> None:
        if self._ranks.is_rank_zero:
            self._reporter.step(plan, self._meter, self._device_feed.queued, last, lr=self._rate(plan))

    def _rate(self, plan: PhasePlan) -> float | None:
        """Return the present learning rate; None outside training, and for what learns without one."""
        if plan.purpose != TRAIN or not self._assignment.training.has_rate:
            return None
        return self._learner.rates.at(plan, self._meter.place)

    def _of_all_ranks(self, result: StepResult) -> StepResult:
        sums = torch.tensor([result.loss * result.clips, result.correct, result.clips], dtype=torch.float64)
        self._ranks.sum(sums)
        loss, correct, clips = sums.tolist()
        return StepResult(loss / clips, round(correct), round(clips))

    def _retry(self, call: Callable[[], T]) -> T:
        return retry_transient(call, lambda: self._consensus.signal() is ControlSignal.LEAVE)

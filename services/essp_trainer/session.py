"""One training's way through the phases of its job.

    TRAIN 0 ▶ checkpoint ▶ VALIDATION 0 ▶ scores, best? ▶ TRAIN 1 ▶ ... ▶ TEST, by the best ▶ final checkpoint

Before each batch its ranks agree on what to do (`turn.py`); all of them go the same way, and rank 0 writes and reports.

After each batch its bytes are freed and the master is told; that its messages need no redelivery is said only once a
checkpoint holds what they taught (`keeper.py`). So a trainer that dies goes on from its last checkpoint, and is given
again all that it had trained since. An evaluation is not resumed half way: it starts again at its first clip.

A checkpoint is begun at the end of each TRAIN pass and every `checkpoint_clips`, and written while training goes on;
when the job pauses, before weights are called the best, and before leaving (drain, stop) it is waited for. It is always
of a moment between two batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import torch

from essp_common.artifacts import scores
from essp_common.artifacts.checkpoint import Best, Manifest, PhaseRecord
from essp_common.errors import PermanentError
from essp_common.messages.ordered import PhaseEnd
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, PhasePlan
from essp_common.planning.digest import joined
from essp_common.planning.position import Position
from essp_common.runtime.failpoints import failpoint
from essp_trainer.assignment import Assignment, purpose_name
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore, TrainingState
from essp_trainer.checkpoints.checkpointer import Checkpointer, Unsaved
from essp_trainer.data.device_feed import DeviceFeed
from essp_trainer.data.prefetch import Batch
from essp_trainer.distributed.consensus import Turn, Turns, Wish
from essp_trainer.learner import Learner
from essp_trainer.model.evaluation import figures
from essp_trainer.model.schedule import learning_rate
from essp_trainer.model.training import StepResult
from essp_trainer.progress import Meter, Reporter
from essp_trainer.retry import persistently

_NEXT_S = 0.2

T = TypeVar("T")


class Session:
    """Trains, evaluates and saves until the job's passes are over, or until it is to leave."""

    def __init__(
        self,
        assignment: Assignment,
        feed: DeviceFeed,
        learner: Learner,
        keeper: Checkpointer,
        archive: CheckpointStore,
        reporter: Reporter,
        turns: Turns,
    ) -> None:
        self._assignment = assignment
        self._feed = feed
        self._learner = learner
        self._keeper = keeper
        self._archive = archive
        self._reporter = reporter
        self._turns = turns
        self._ranks = turns.ranks
        self._clock = reporter.clock
        self._standing = TrainingState()
        self._meter = Meter(self._clock)
        self._in_hand: Batch | PhaseEnd | None = None
        self._evaluated = 0
        """Digest of the clips of the evaluation under way: an interrupted one starts again at its first clip."""

    def resume(self, manifest: Manifest) -> None:
        """Go on where a checkpoint left off. Raises `ConfigError` when it is of another training."""
        self._learner.resume(manifest)
        self._standing = self._archive.standing(manifest)
        if not self._ranks.leads:
            self._standing.digest = 0  # what was seen before, rank 0 adds
        self._meter = Meter.of(self._standing.running, self._clock)
        self._keeper.saved = manifest

    def run(self) -> None:
        """Until all phases are over, or until it is to leave. Raises `Unsaved` when it leaves without a checkpoint."""
        while not self.over:
            turn, waited_s = self._next()
            if turn.written:
                self._keeper.settle()
            if turn.wish is Wish.LEAVE and self._between_batches():
                if not self._save():
                    raise Unsaved("left without a checkpoint: it could not be saved; the last one is gone on from")
                return
            if turn.save and self._between_batches():
                self._begin_save()
            if turn.ready:
                self._take_turn(turn, waited_s)
            elif turn.wish is Wish.PAUSE:
                self._meter.leave_out(waited_s)
                if not self._keeper.failing:  # else `due` says when to try again
                    self._save()
            else:
                self._meter.waited_s += waited_s
                self._report_step()
        self._keeper.finish(self._learner.training, self._standing)

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self._standing.position == self._assignment.end

    def _next(self) -> tuple[Turn, float]:
        """What all ranks do now, and how long the model had to wait to learn it."""
        asked = self._clock()
        if self._in_hand is None:
            self._in_hand = self._feed.next(_NEXT_S)
        leads = self._ranks.leads
        turn = self._turns.agree(self._in_hand, leads and self._keeper.due, leads and self._keeper.written)
        return turn, self._clock() - asked

    def _take_turn(self, turn: Turn, waited_s: float) -> None:
        item, self._in_hand = self._in_hand, None
        if isinstance(item, Batch):
            self._meter.waited_s += waited_s
            self._do(item, turn)
        elif item is not None:
            self._end_phase(item.plan)

    def _between_batches(self) -> bool:
        """Not between the last clip of a phase and its end, which needs no clip: those two are one checkpoint."""
        position = self._standing.position
        return position.index == 0 or position.index < self._assignment.phases[position.phase_index].clips

    def _do(self, batch: Batch, turn: Turn) -> None:
        if batch.plan.purpose == TRAIN:
            if turn.share.clips:
                self._meter.add(self._learner.train(batch, turn.share, turn.channels))
            self._standing.position = batch.position
            self._standing.epoch = batch.plan.epoch
            self._standing.digest = joined([self._standing.digest, batch.digest()])
        elif turn.share.clips:
            best = self._standing.best if batch.plan.purpose != VALIDATION else None
            result = self._patiently(lambda: self._learner.evaluate(batch, best))
            self._meter.add(self._of_all_ranks(result))
            self._evaluated = joined([self._evaluated, batch.digest()])
        failpoint("trainer.trained")
        self._keeper.hold(batch.items)
        self._patiently(lambda: self._feed.release(batch.items))
        failpoint("trainer.released")
        if self._ranks.leads:
            self._reporter.step(batch.plan, self._meter, batch.stop, self._feed.queued)
        if batch.plan.purpose == TRAIN and self._many_unsaved() and self._between_batches():
            self._begin_save()

    def _many_unsaved(self) -> bool:
        """`checkpoint_clips` says so. While saves fail the keeper says when to try again."""
        every, clips_before = self._assignment.training.checkpoint_clips, self._assignment.clips_before
        if not every or self._keeper.failing:
            return False
        return clips_before(self._standing.position) - clips_before(self._keeper.newest) >= every

    def _end_phase(self, plan: PhasePlan) -> None:
        metrics = self._end_training(plan) if plan.purpose == TRAIN else self._end_evaluation(plan)
        # Times differ between ranks: those of rank 0 are the training's.
        metrics = json.loads(self._ranks.told(json.dumps(metrics | self._meter.pace()).encode()))
        if plan.purpose == VALIDATION:
            self._judge(metrics)
        self._standing.position = Position(self._standing.position.phase_index + 1, 0)
        self._standing.digest, self._evaluated = joined([self._standing.digest, self._evaluated]), 0
        self._standing.history.append(
            PhaseRecord(purpose=purpose_name(plan.purpose), epoch=plan.epoch, metrics=metrics)
        )
        self._meter = Meter(self._clock)
        if plan.purpose == TRAIN:
            self._begin_save()
        if self._ranks.leads:
            self._patiently(lambda: self._archive.write_history(self._standing))
            self._patiently(lambda: self._reporter.phase_over(plan, metrics))

    def _end_training(self, plan: PhasePlan) -> dict[str, float]:
        if not self._meter.clips:
            raise PermanentError(f"no clip of training epoch {plan.epoch} could be decoded")
        rate = learning_rate(self._assignment.training.optimizer, self._assignment.spec.epochs, plan.epoch)
        return {"loss": self._meter.loss, "top1": self._meter.top1, "lr": rate}

    def _end_evaluation(self, plan: PhasePlan) -> dict[str, float]:
        """The figures of a phase, on rank 0, where the scores of all ranks are put together."""
        own = self._learner.scored()
        if own is None:
            raise PermanentError(f"no clip of the {purpose_name(plan.purpose)} pass could be decoded")
        parts = self._ranks.gathered(scores.packed(own))
        if not self._ranks.leads:
            return {}
        table = scores.joined([scores.unpacked(part) for part in parts])
        self._patiently(lambda: self._archive.write_scores(plan, table))
        failpoint("trainer.scored")
        return figures(table)

    def _judge(self, metrics: dict[str, float]) -> None:
        """Whether the weights that were validated are the best so far; only weights that are saved can be."""
        if not _better(metrics, self._standing.best):
            return
        saved = self._keeper.saved if self._save() else None
        if saved is not None:
            self._standing.best = Best(step=saved.step, epoch=self._standing.epoch, metrics=metrics)

    def _save(self) -> bool:
        """A checkpoint, if there is anything to keep that the last one does not hold; False when that failed."""
        if not self._learner.begun:
            return True
        return self._keeper.save(self._learner.training, self._now())

    def _begin_save(self) -> None:
        """The same, to be written while training goes on."""
        if self._learner.begun:
            self._keeper.begin(self._learner.training, self._now())

    def _now(self) -> TrainingState:
        self._standing.running = self._meter.sums() if self._standing.position.index else {}
        return self._standing

    def _report_step(self) -> None:
        if self._ranks.leads:
            plan = self._assignment.phases[self._standing.position.phase_index]
            self._reporter.step(plan, self._meter, self._meter.clips, self._feed.queued)

    def _of_all_ranks(self, result: StepResult) -> StepResult:
        sums = torch.tensor([result.loss * result.clips, result.correct, result.clips], dtype=torch.float64)
        self._ranks.sum(sums)
        loss, correct, clips = sums.tolist()
        return StepResult(loss / clips, round(correct), round(clips))

    def _patiently(self, call: Callable[[], T]) -> T:
        return persistently(call, lambda: self._turns.wish() is Wish.LEAVE)


def _better(metrics: dict[str, float], best: Best | None) -> bool:
    """More videos right; of equals, the lower loss; of equals, the earlier."""
    if best is None:
        return True
    return (metrics["video_top1"], -metrics["video_loss"]) > (best.metrics["video_top1"], -best.metrics["video_loss"])

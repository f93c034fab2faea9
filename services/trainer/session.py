"""One training's way through the passes of its job.

    TRAIN 0 ▶ checkpoint ▶ VALIDATION 0 ▶ scores, best? ▶ TRAIN 1 ▶ ... ▶ TEST, by the best ▶ final checkpoint

After each batch its bytes are freed and the master is told; that its messages need no redelivery is said only once a
checkpoint holds what they taught. So a trainer that dies goes on from its last checkpoint, and is given again all
that it had trained since. An evaluation is not resumed half way: it starts again at the first clip of its pass.

A checkpoint is saved at the end of each TRAIN pass, every `checkpoint_clips`, when the job pauses, and before leaving
(drain, stop); always between two batches.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TypeVar

import torch

from essp_common.checkpoint import Best, Manifest, ModelDescription, PassRecord
from essp_common.errors import PermanentError
from essp_common.layout import Position
from essp_common.learning.models import build
from essp_common.learning.networks import StateDict
from essp_common.learning.randomness import seed_of
from essp_common.ordered import OrderedIntake, PassEnd, Taken
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, PassPlan
from services.trainer.archive import Archive, Standing
from services.trainer.assignment import Assignment, purpose_name
from services.trainer.evaluation import Evaluation, figures
from services.trainer.patience import persistently
from services.trainer.prefetch import Batch, Prefetch
from services.trainer.progress import Clock, Meter, Reporter
from services.trainer.training import Training, learning_rate

_NEXT_S = 0.2

T = TypeVar("T")


class Wish(Enum):
    """What is wanted of a training from outside."""

    GO_ON = auto()
    PAUSE = auto()
    LEAVE = auto()


class Session:
    """Trains, evaluates and saves until the job's passes are over, or until it is to leave."""

    def __init__(
        self,
        assignment: Assignment,
        archive: Archive,
        intake: OrderedIntake,
        prefetch: Prefetch,
        reporter: Reporter,
        device: torch.device,
        wish: Callable[[], Wish],
        clock: Clock,
    ) -> None:
        self._assignment = assignment
        self._archive = archive
        self._intake = intake
        self._prefetch = prefetch
        self._reporter = reporter
        self._device = device
        self._wish = wish
        self._clock = clock
        self._standing = Standing()
        self._model: ModelDescription | None = None
        self._training: Training | None = None
        self._evaluation: Evaluation | None = None
        self._weights: StateDict | None = None
        self._meter = Meter(clock)
        self._uncommitted: list[Taken] = []
        self._saved_clips = 0
        self._saved: Manifest | None = None

    def start_from(self, weights: StateDict | None) -> None:
        """Begin a new training, with these weights (None: initial ones) once the first clip shows the input's shape."""
        self._weights = weights

    def resume(self, manifest: Manifest) -> None:
        """Go on where a checkpoint left off."""
        self._make_training(manifest.model)
        self._archive.load(manifest, self._trained())
        self._standing = self._archive.standing(manifest)
        self._meter = Meter.of(self._standing.running, self._clock)
        self._saved, self._saved_clips = manifest, self._assignment.clips_before(manifest.position)

    def run(self) -> None:
        """Until all passes are over, or until it is to leave."""
        while self._standing.position != self._assignment.end:
            wish = self._wish()
            if wish is Wish.LEAVE and self._between_batches():
                self._save_progress()
                return
            asked = self._clock()
            item = self._prefetch.next(_NEXT_S)
            waited_s = self._clock() - asked
            if isinstance(item, PassEnd):
                self._end_pass(item.plan)
            elif item is not None:
                self._meter.waited_s += waited_s
                self._do(item)
            elif wish is Wish.PAUSE:
                self._meter.leave_out(waited_s)
                self._save_progress()
            else:
                self._meter.waited_s += waited_s
                self._report_step()
        self._finish()

    def _between_batches(self) -> bool:
        """Not between the last clip of a pass and its end, which needs no clip: those two are one checkpoint."""
        position = self._standing.position
        return position.clips == 0 or position.clips < self._assignment.passes[position.pass_index].clips

    def _do(self, batch: Batch) -> None:
        if batch.plan.purpose == TRAIN:
            if batch.frames:
                self._meter.add(self._training_for(batch).step(batch))
            self._standing.position = batch.position
            self._standing.epoch = batch.plan.epoch
        elif batch.frames:
            self._meter.add(self._evaluation_for(batch).add(batch))
        self._uncommitted += batch.items
        self._patiently(lambda: self._intake.release(batch.items))
        self._reporter.step(batch.plan, self._meter, batch.stop, self._prefetch.queued)
        every = self._assignment.training.checkpoint_clips
        done = self._assignment.clips_before(self._standing.position)
        if batch.plan.purpose == TRAIN and every and done - self._saved_clips >= every and self._between_batches():
            self._save_progress()

    def _end_pass(self, plan: PassPlan) -> None:
        self._standing.position = Position(self._standing.position.pass_index + 1, 0)
        if plan.purpose == TRAIN:
            metrics = {"loss": self._meter.loss, "top1": self._meter.top1}
            metrics["lr"] = learning_rate(self._assignment.training.optimizer, plan.epoch)
            if not self._meter.clips:
                raise PermanentError(f"no clip of training epoch {plan.epoch} could be decoded")
        else:
            metrics = self._end_evaluation(plan)
        metrics |= self._meter.pace()
        self._standing.history.append(PassRecord(purpose=purpose_name(plan.purpose), epoch=plan.epoch, metrics=metrics))
        self._meter = Meter(self._clock)
        if plan.purpose == TRAIN:
            self._save_progress()
        self._patiently(lambda: self._archive.write_history(self._standing))
        self._patiently(lambda: self._reporter.pass_over(plan, metrics))

    def _end_evaluation(self, plan: PassPlan) -> dict[str, float]:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None:
            raise PermanentError(f"no clip of the {purpose_name(plan.purpose)} pass could be decoded")
        table = evaluation.table()
        metrics = figures(table)
        self._patiently(lambda: self._archive.write_scores(plan, table))
        if plan.purpose == VALIDATION and self._saved is not None and _better(metrics, self._standing.best):
            self._standing.best = Best(step=self._saved.step, epoch=self._standing.epoch, metrics=metrics)
        return metrics

    def _finish(self) -> None:
        """All passes are over: the best weights become the final checkpoint."""
        training, model = self._trained(), self._described()
        manifest = self._patiently(lambda: self._archive.save_final(training, model, self._standing))
        self._publish(manifest)

    def _save_progress(self) -> None:
        """A checkpoint, if anything is to be kept that the last one does not hold."""
        clips = self._assignment.clips_before(self._standing.position)
        if self._training is None or clips == self._saved_clips:
            return
        training, model = self._training, self._described()
        self._standing.running = self._meter.sums() if self._standing.position.clips else {}
        self._saved = self._patiently(lambda: self._archive.save(training, model, self._standing))
        self._saved_clips = clips
        self._publish(self._saved)

    def _publish(self, manifest: Manifest) -> None:
        """A checkpoint is durable: say so, and let go of the messages whose clips it holds."""
        uri, scores_uri = self._archive.uri(manifest), self._archive.scores_uri(manifest)
        self._patiently(lambda: self._reporter.checkpoint(manifest, uri, scores_uri))
        held = [item for item in self._uncommitted if _place(item) < manifest.position]
        self._intake.commit(held)
        self._uncommitted = [item for item in self._uncommitted if _place(item) >= manifest.position]

    def _report_step(self) -> None:
        position = self._standing.position
        plan = self._assignment.passes[position.pass_index]
        self._reporter.step(plan, self._meter, self._meter.clips, self._prefetch.queued)

    def _training_for(self, batch: Batch) -> Training:
        if self._training is None:
            training = self._assignment.training
            self._make_training(
                ModelDescription(
                    name=training.model,
                    feature=self._assignment.stream.feature,
                    channels=batch.frames[0].shape[-1],
                    classes=self._assignment.classes,
                    dropout=training.dropout,
                    crop=training.augment.crop,
                )
            )
        return self._trained()

    def _make_training(self, model: ModelDescription) -> None:
        identity = (self._assignment.spec.sampling.seed, self._assignment.trainer)
        classifier = build(model, seed_of("weights", *identity), self._weights)
        self._model = model
        self._training = Training(classifier, self._assignment.training, self._device, identity)

    def _evaluation_for(self, batch: Batch) -> Evaluation:
        if self._evaluation is None:
            best = self._standing.best
            model = self._trained().model
            if batch.plan.purpose != VALIDATION and best is not None:
                model = self._patiently(lambda: self._archive.best_model(best))
            self._evaluation = Evaluation(model, self._device, self._assignment.classes)
        return self._evaluation

    def _trained(self) -> Training:
        if self._training is None:
            raise PermanentError("nothing has been trained: no clip of a training pass came")
        return self._training

    def _described(self) -> ModelDescription:
        if self._model is None:
            raise PermanentError("nothing has been trained: no clip of a training pass came")
        return self._model

    def _patiently(self, call: Callable[[], T]) -> T:
        return persistently(call, lambda: self._wish() is Wish.LEAVE)


def _better(metrics: dict[str, float], best: Best | None) -> bool:
    """More videos right; of equals, the lower loss; of equals, the earlier."""
    if best is None:
        return True
    return (metrics["video_top1"], -metrics["video_loss"]) > (best.metrics["video_top1"], -best.metrics["video_loss"])


def _place(item: Taken) -> Position:
    return Position(item.pass_index, item.clip.index)

"""A model being trained, and the step, to be read from top to bottom.

A training gives the same parameters to the last bit whether or not it was stopped and resumed, and whatever else runs
in the process (on a CPU, with the same machine, threads and ranks): nothing uses torch's global random generator,
dropout is seeded for each update from (seed of the training, update), and the learning rate is a function of the
progress.

With several ranks, each step equals the step of a single rank on the whole batch, except for the order of
floating-point additions: each rank computes the gradient of its own clips' share of the mean loss, and the sum over the
ranks is the gradient. A rank without a clip in a batch still takes part in the step, because the others wait for it
(`docs/decisions/0018`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, TRAINED_FILE
from essp_common.errors import ConfigError
from essp_common.job.trainer_spec import TrainerSpec
from essp_engine.encoders.fitting import Tell
from essp_engine.intake.ordered import largest_share
from essp_engine.learning.branches import gradients_that_wait
from essp_engine.learning.clip_order import require_clips_first
from essp_engine.learning.losses import loss
from essp_engine.learning.mixing import blend_of
from essp_engine.learning.models import Classifier, load_tensors
from essp_engine.learning.normalisation import batch_norms, take_any_batch
from essp_engine.learning.randomness import Share, seed_of
from essp_engine.learning.scores import Scores
from essp_engine.loading.batch import Batch, ClipShape
from essp_engine.loading.device import enough_memory, half_type, launches, sent
from essp_trainer.assignment import Assignment
from essp_trainer.distributed.gradients import GradientSum
from essp_trainer.distributed.partners import partners
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.ema import Ema
from essp_trainer.model.examples import Blended, Examples
from essp_trainer.model.optimizer import Optimizer, stands
from essp_trainer.model.port import Files
from essp_trainer.model.rates import Rates
from essp_trainer.model.step_result import LaunchedStep, StepResult

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary classifier's loss (Szegedy et al., "Rethinking the Inception Architecture", 2016)."""


def class_weights(assignment: Assignment, device: torch.device) -> Tensor | None:
    """Return `(K,)` float32 weights, in the order of the classes; None if all are 1."""
    given = assignment.training.class_weights
    return torch.tensor([given.get(name, 1.0) for name in assignment.classes], device=device) if given else None


class Training:
    """One network being trained. Implements `essp_trainer.model.port.Trainable`."""

    def __init__(
        self,
        model: Classifier,
        ema: Ema | None,
        assignment: Assignment,
        device: torch.device,
        ranks: Ranks,
        rates: Rates,
    ) -> None:
        """`ema`: averages the weights of the model, if the job asks for it. `rates`: the learning rates."""
        take_any_batch(model, ranks)
        if ranks.world_size > 1 or 0 < assignment.training.micro_batch < assignment.training.batch_size:
            require_clips_first(model, assignment.training.augment.crop)
        self.model = model
        self._learned = _learned(model, assignment.training)
        self._still = _still(model, assignment.training)
        self._gradients = GradientSum(self._learned, ranks, waiting=self._waiting(assignment, ranks))
        self.ema = ema
        self.updates = 0
        self._spec = assignment.training
        self._labels = len(assignment.classes) if assignment.learns_labels else 0
        """Number of independent labels; 0 if classes are learned."""
        self._loss_of = loss(
            self._spec.loss,
            self._spec.label_smoothing,
            class_weights(assignment, device),
            independent=assignment.learns_labels,
            code=assignment.code,
        )
        self._rates = rates
        self._seed = assignment.seed
        self._device = device
        self._ranks = ranks
        self._most_clips = largest_share(self._spec.batch_size, ranks.world_size, ranks.partitions)
        """Largest number of a batch's clips on one rank."""
        self._half = half_type(self._spec.amp, device)
        self._launches = launches(device)
        self._wait: Callable[[], None] | None = None
        self._head = model.head
        self._of_head = set(model.head.parameters())
        self._frozen = False
        """Whether only the head learns."""
        self.optimizer = Optimizer(
            self.model, self._spec.optimizer, scaling=self._half == torch.float16, fused=self._launches
        )

    @property
    def evaluated(self) -> Classifier:
        """The model to evaluate and save: the moving average, if there is one."""
        return self.model if self.ema is None else self.ema.model

    def files(self) -> Files:
        """Return the weights to evaluate, the weights being trained if they differ, and the optimizer state."""
        return self._weights() | {OPTIMIZER_FILE: self.optimizer.state()}

    def files_to_come(self) -> Files:
        """Return `files` for the time when every parameter has been updated."""
        return self._weights() | {OPTIMIZER_FILE: self.optimizer.state_to_come()}

    def moving(self) -> Collection[tuple[str, str]]:
        """Return the tensors that a forward pass changes."""
        trained = MODEL_FILE if self.ema is None else TRAINED_FILE
        return {(trained, name) for name, _ in self.model.named_buffers(remove_duplicate=False)}

    def load(self, files: Mapping[str, Mapping[str, Tensor]], updates: int) -> None:
        """Load weights, momentum and the update counter of a checkpoint."""
        load_tensors(self.evaluated, files[MODEL_FILE])
        if self.ema is not None:
            load_tensors(self.model, files[TRAINED_FILE])
        self.optimizer.load(files[OPTIMIZER_FILE])
        self.updates = updates

    def wait_before_update(self, wait: Callable[[], None]) -> None:
        """Call `wait` once before parameters, momentum or the moving average change, since they are being copied."""
        self._wait = wait

    def end_epoch(self, tell: Tell) -> None:
        """Do nothing: a network has learned from each batch."""

    def _weights(self) -> Files:
        files: Files = {MODEL_FILE: self.evaluated.state_dict()}
        if self.ema is not None:
            files[TRAINED_FILE] = self.model.state_dict()
        return files

    def step(self, batch: Batch, share: Share, shape: ClipShape) -> StepResult | LaunchedStep:
        """Train on one batch. This rank has `share` of it. `shape`: of the batch's clips, on all ranks.

        Raises `Diverged` on a CPU; on a GPU, `LaunchedStep.result` does. Either way, such a step changes no parameter.
        """
        self._train_mode(batch.plan.epoch < self._spec.freeze_epochs)
        with enough_memory(self._device, share.clips):
            self.optimizer.start(self._rates.at(batch.plan, batch.begin))
            # Synchronisation point: within `_backward`, gradients are exchanged while they are computed.
            # `_over_all_ranks` then sums loss and accuracy.
            loss, correct = self._over_all_ranks(*self._backward(batch, share, shape))
            norm = self.optimizer.clip()
            where = f"update {self.updates} of epoch {batch.plan.epoch}"
            launched = LaunchedStep((loss, correct, norm, self.optimizer.may_skip()), share.clips, where)
            # A CPU has the metrics now. On a GPU the host does not wait for them; they are read after the next launch.
            result = launched if self._launches else launched.result()
            # A checkpoint may still be copying parameters and momentum: wait for it as late as possible, but before
            # they change.
            self._end_wait()
            self.optimizer.step(torch.isfinite(loss) & torch.isfinite(norm))
        self.updates += 1
        if self.ema is not None:
            self.ema.update(self.model, self.updates)
        return result

    def _waiting(self, assignment: Assignment, ranks: Ranks) -> set[nn.Parameter]:
        """Return the parameters whose gradients are exchanged after the backward pass."""
        if ranks.world_size == 1:
            return set()
        return gradients_that_wait(self.model, assignment.training.augment.crop, self._still)

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()

    def _backward(self, batch: Batch, share: Share, shape: ClipShape) -> tuple[Tensor, Tensor]:
        """Compute gradients, summed over the ranks. Returns this rank's part of the mean loss, and its number of
        correct clips; a blended clip counts as correct if it gets the class with the larger weight."""
        examples = self._examples(batch, share, shape)
        total, correct = torch.zeros((), device=self._device), torch.zeros((), dtype=torch.int64, device=self._device)
        passes = self._passes(len(examples))
        for rows in passes:
            own = Share(share.clips, share.rows[rows])
            self.model.dropout.reseed(seed_of("dropout", self._seed, self.updates), own)
            with torch.autocast(self._device.type, dtype=self._half, enabled=self._half is not None):
                scores = self.model(examples.seen(rows))
                loss = examples.loss(partial(self._loss, scores), rows) / share.clips
            # Earlier passes only accumulate. The last one completes the gradients, so their exchange may start.
            if rows is passes[-1]:
                self._gradients.begin()
            self.optimizer.scaled(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
            correct += examples.right(scores.logits.argmax(dim=1), rows)
        self._gradients.finish()
        return total, correct

    def _passes(self, clips: int) -> list[slice]:
        """Return the clips of this rank that go through the network together, as slices. All ranks have the same number
        of passes, since they synchronise in each normalisation."""
        most = self._spec.micro_batch
        if not most:
            return [slice(0, clips)]
        count = math.ceil((clips if self._ranks.world_size == 1 else self._most_clips) / most)
        return [slice(number * most, (number + 1) * most) for number in range(count)]

    def _examples(self, batch: Batch, share: Share, shape: ClipShape) -> Examples:
        targets = self._targets(batch)
        clips_BTHWC = self._clips(batch, shape)  # noqa: N806
        blend = blend_of(self._spec.augment, self._seed, batch.plan.epoch, batch.begin)
        if blend is None:
            return Examples(clips_BTHWC, targets)
        of = partial(partners, share=share, ranks=self._ranks)
        return Blended(blend, self.model.normalised, clips_BTHWC, targets, of(clips_BTHWC), of(targets))

    def _targets(self, batch: Batch) -> Tensor:
        if not self._labels:
            return sent(torch.from_numpy(batch.labels()), self._device)
        return sent(torch.from_numpy(batch.label_sets(self._labels).astype(np.float32)), self._device)

    def _clips(self, batch: Batch, shape: ClipShape) -> Tensor:
        if batch.input is not None:
            return batch.input.here()
        side, kind = self._spec.augment.crop, torch.uint8 if shape.bytes else torch.float32
        return torch.zeros(0, shape.frames, side, side, shape.channels, dtype=kind, device=self._device)

    def _loss(self, scores: Scores, targets: Tensor) -> Tensor:
        """Return the sum of the losses of the clips."""
        loss = self._loss_of(scores.logits, targets)
        if scores.auxiliary is not None:
            loss = loss + AUXILIARY_WEIGHT * self._loss_of(scores.auxiliary, targets)
        return loss

    def _over_all_ranks(self, loss: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
        if self._ranks.world_size == 1:
            return loss, correct
        sums = torch.stack([loss, correct.to(loss.dtype)])
        self._ranks.sum(sums)
        return sums[0], sums[1]

    def _train_mode(self, frozen: bool) -> None:
        if frozen != self._frozen:
            for parameter in self._learned:
                parameter.requires_grad_(not frozen or parameter in self._of_head)
            self._frozen = frozen
        self.model.train(not frozen)
        if frozen:
            self._head.train()
        for layer in self._still:
            layer.eval()


def _learned(model: Classifier, training: TrainerSpec) -> list[nn.Parameter]:
    """Return the parameters that learn, and disable the gradients of the rest, which would add to the clipped norm:
    parameters that the network has fixed, and layers that the job freezes. Raises `ConfigError` if nothing learns.
    """
    for name, parameter in model.named_parameters():
        if stands(training.optimizer, name):
            parameter.requires_grad_(False)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not learned:
        raise ConfigError(
            "gives all layers the rate 0, so nothing learns; give one another",
            field="optimizer.layers",
            code="conflict",
        )
    if training.freeze_epochs and not set(learned) & set(model.head.parameters()):
        raise ConfigError(
            "lets the last layer alone learn, and optimizer.layers gives it the rate 0; leave one out",
            field="freeze_epochs",
            code="conflict",
        )
    return learned


def _still(model: Classifier, training: TrainerSpec) -> list[nn.Module]:
    """Return the normalisations with frozen statistics: those in frozen layers, and with partial batch normalisation
    all but the first (Wang et al., "Temporal Segment Networks", 2016, section 3.2)."""
    layers = batch_norms(model)
    partial = [*layers][1:] if training.partial_bn else []
    return [layer for path, layer in layers.items() if path in partial or stands(training.optimizer, path)]

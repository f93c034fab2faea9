"""A model being trained, and the step, read from top to bottom.

A training gives the same parameters to the last bit whether or not it was stopped and resumed, and whatever else runs
in the process (on a CPU; same machine, same number of threads and ranks): nothing uses torch's global random generator,
dropout is seeded for each update from (seed of the training, update), and the learning rate is a function of the
progress.

On several ranks each step equals that of one rank on the whole batch, except for the order in which floats are added:
each rank computes the gradient of its own clips' share of the mean loss, and the sum over the ranks is the gradient. A
rank without a clip in a batch still takes part in the step, because the others wait for it (`docs/decisions/0018`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from essp_common.errors import PermanentError
from essp_common.learning.models import Classifier, Scores
from essp_common.learning.normalisation import take_any_batch
from essp_common.learning.randomness import Share, seed_of
from essp_trainer.assignment import Assignment
from essp_trainer.data.device import enough_memory, half_type
from essp_trainer.data.prefetch import Batch
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.ema import Ema
from essp_trainer.model.optimiser import Optimiser
from essp_trainer.model.schedule import learning_rate

AUXILIARY_WEIGHT = 0.4
"""Weight of the auxiliary classifier's loss (Szegedy et al., "Rethinking the Inception Architecture", 2016)."""


class Diverged(PermanentError):
    """The loss or its gradient is not a finite number; the parameters are unchanged."""

    kind = "diverged"


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss and accuracy of one batch, over all ranks."""

    loss: float
    """Mean over the batch."""
    correct: int
    clips: int


class Training:
    """One model being trained."""

    def __init__(
        self, model: Classifier, ema: Ema | None, assignment: Assignment, device: torch.device, ranks: Ranks
    ) -> None:
        """`ema`: averages the weights of the model, if the job asks for it."""
        take_any_batch(model, ranks)
        self.model = model
        self.ema = ema
        self.updates = 0
        self._spec = assignment.training
        self._epochs = assignment.spec.epochs
        self._seed = assignment.seed
        self._device = device
        self._ranks = ranks
        self._half = half_type(self._spec.amp, device)
        self.optimiser = Optimiser(self.model, self._spec.optimizer, scaling=self._half == torch.float16)

    @property
    def evaluated(self) -> Classifier:
        """The model to evaluate and save: the moving average, if there is one."""
        return self.model if self.ema is None else self.ema.model

    def step(self, batch: Batch, share: Share) -> StepResult:
        """Train on one batch, of which this rank has `share`. Raises `Diverged` before it changes a parameter."""
        epochs_done = batch.plan.epoch + batch.begin / batch.plan.clips
        self.model.dropout.reseed(seed_of("dropout", self._seed, self.updates), share)
        self._train_mode()
        with enough_memory(self._device, share.clips):
            self.optimiser.start(learning_rate(self._spec.optimizer, self._epochs, epochs_done))
            loss, correct = self._over_all_ranks(*self._backward(batch, share))
            norm = self.optimiser.clip()
            if not bool(torch.isfinite(loss) & (torch.isfinite(norm) | self.optimiser.may_skip)):
                raise self._diverged(loss, norm, batch)
            self.optimiser.step()
        self.updates += 1
        if self.ema is not None:
            self.ema.update(self.model, self.updates)
        return StepResult(loss.item(), round(correct.item()), share.clips)

    def _backward(self, batch: Batch, share: Share) -> tuple[Tensor, Tensor]:
        """Compute gradients. Returns this rank's part of the mean loss, and its number of correct clips."""
        target_B = torch.from_numpy(batch.labels()).to(self._device)  # noqa: N806
        with torch.autocast(self._device.type, dtype=self._half, enabled=self._half is not None):
            scores = self.model(self._clips(batch))
            loss = self._loss(scores, target_B) / share.clips
        self.optimiser.scaled(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), (scores.logits.argmax(dim=1) == target_B).sum()

    def _clips(self, batch: Batch) -> Tensor:
        if batch.input is not None:
            return batch.input.here()
        return torch.zeros(0, 1, *[self._spec.augment.crop] * 2, len(self.model.mean), device=self._device)

    def _loss(self, scores: Scores, target_B: Tensor) -> Tensor:  # noqa: N803
        """Sum of the losses of the clips."""
        smoothing = self._spec.label_smoothing
        loss = functional.cross_entropy(scores.logits, target_B, reduction="sum", label_smoothing=smoothing)
        if scores.auxiliary is not None:
            other = functional.cross_entropy(scores.auxiliary, target_B, reduction="sum", label_smoothing=smoothing)
            loss = loss + AUXILIARY_WEIGHT * other
        return loss

    def _over_all_ranks(self, loss: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
        """Add up gradients, loss and correct clips over the ranks, in one all-reduce."""
        if self._ranks.world_size == 1:
            return loss, correct
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        sums = torch.cat([*(g.flatten() for g in gradients), loss.view(1), correct.float().view(1)])
        self._ranks.sum(sums)
        pieces = torch.split(sums[:-2], [g.numel() for g in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))
        return sums[-2], sums[-1]

    def _train_mode(self) -> None:
        """Partial batch normalisation: Wang et al., "Temporal Segment Networks", 2016, section 3.2."""
        self.model.train()
        if self._spec.partial_bn:
            for layer in [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)][1:]:
                layer.eval()

    def _diverged(self, loss: Tensor, norm: Tensor, batch: Batch) -> Diverged:
        return Diverged(
            f"loss {loss.item():g}, gradient norm {norm.item():g} at update {self.updates} of epoch "
            f"{batch.plan.epoch}; lower optimizer.lr or optimizer.clip_grad_norm, or set optimizer.warmup_epochs, and "
            f"start again"
        )

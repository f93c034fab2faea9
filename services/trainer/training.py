"""A model, its optimiser, and the step, read from top to bottom.

SGD with momentum; the learning rate falls by `gamma` at the epochs named. Nothing is drawn from torch's global
generator, and dropout is seeded for each update from (job seed, trainer, update), so a training gives the same
parameters to the last bit whether or not it was stopped and resumed, and whatever else runs in the process (same
machine, same number of threads and ranks).

On several ranks each step is that of one rank on the whole batch, but for the order in which floats are added: every
rank takes the gradient of its own clips' share of the mean loss, and the sum over the ranks is the gradient. A rank
without a clip in a batch goes through the step with none, as the others need it (`docs/decisions/0018`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from essp_common.errors import ConfigError, PermanentError
from essp_common.learning.models import Classifier, Scores
from essp_common.learning.normalisation import share_batches
from essp_common.learning.randomness import Share, seed_of
from essp_common.spec import OptimizerSpec, TrainerSpec
from services.trainer.prefetch import Batch
from services.trainer.ranks import Ranks

AUXILIARY_WEIGHT = 0.4
"""Share of the second classifier's loss (Szegedy et al., "Rethinking the Inception Architecture", 2016)."""


class Diverged(PermanentError):
    """The loss or its gradient is not a finite number; the parameters were left as they were."""

    kind = "diverged"


class OutOfMemory(PermanentError):
    """The GPU has no room for a batch."""

    kind = "memory"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one batch gave, on all ranks."""

    loss: float
    """Mean over the batch."""
    correct: int
    clips: int


class Training:
    """One model being trained."""

    def __init__(
        self, model: Classifier, spec: TrainerSpec, device: torch.device, identity: tuple[object, ...], ranks: Ranks
    ) -> None:
        """`identity`: job seed and trainer's name, from which dropout is seeded."""
        if ranks.world_size > 1:
            share_batches(model, ranks)
        self.model = model.to(device)
        self.updates = 0
        self._spec = spec
        self._device = device
        self._identity = identity
        self._ranks = ranks
        rates = spec.optimizer
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rates.lr, momentum=rates.momentum, weight_decay=rates.weight_decay
        )

    def step(self, batch: Batch, share: Share) -> StepResult:
        """Train on one batch, of which `share` is here. Raises `Diverged` before a parameter is touched."""
        self._optimizer.param_groups[0]["lr"] = learning_rate(self._spec.optimizer, batch.plan.epoch)
        self.model.dropout.reseed(seed_of("dropout", *self._identity, self.updates), share)
        self._train_mode()
        self._optimizer.zero_grad(set_to_none=True)
        with enough_memory(self._device, share.clips):
            x_BTHWC, target_B = self._on_device(batch)  # noqa: N806
            with self._precision():
                scores = self.model(x_BTHWC)
                loss = _loss(scores, target_B) / share.clips
            loss.backward()  # type: ignore[no-untyped-call]
        correct = (scores.logits.argmax(dim=1) == target_B).sum()
        loss, correct = self._over_all_ranks(loss.detach(), correct)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._spec.optimizer.clip_grad_norm)
        if not bool(torch.isfinite(loss) & torch.isfinite(norm)):
            raise Diverged(
                f"loss {loss.item():g}, gradient norm {norm.item():g} at update {self.updates} of epoch "
                f"{batch.plan.epoch}; lower optimizer.lr or optimizer.clip_grad_norm, and start again"
            )
        self._optimizer.step()
        self.updates += 1
        return StepResult(loss.item(), round(correct.item()), share.clips)

    def optimizer_bytes(self) -> bytes:
        """The momentum of every parameter, by name, in the safetensors format."""
        held = {
            name: self._optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self.model.named_parameters()
            if self._optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
        }
        return bytes(safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in held.items()}))

    def load_optimizer(self, data: bytes) -> None:
        """The inverse of `optimizer_bytes`."""
        held = safetensors.torch.load(data)
        for name, parameter in self.model.named_parameters():
            if name in held:
                # In the memory layout of the parameter: another one may round differently in the last bit.
                buffer = torch.empty_like(parameter, requires_grad=False)
                self._optimizer.state[parameter]["momentum_buffer"] = buffer.copy_(held[name])

    def _train_mode(self) -> None:
        """Partial batch normalisation: Wang et al., "Temporal Segment Networks", 2016, section 3.2."""
        self.model.train()
        if self._spec.partial_bn:
            for layer in [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d)][1:]:
                layer.eval()

    def _on_device(self, batch: Batch) -> tuple[Tensor, Tensor]:
        labels = on_device(torch.from_numpy(batch.labels()), self._device)
        if batch.frames:
            return on_device(torch.from_numpy(batch.stacked()), self._device), labels
        side, channels = self._spec.augment.crop, len(self.model.mean)
        return torch.zeros(0, 1, side, side, channels, device=self._device), labels

    def _over_all_ranks(self, loss: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
        """Add up gradients, loss and right answers, all in one exchange."""
        if self._ranks.world_size == 1:
            return loss, correct
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        sums = torch.cat([*(g.flatten() for g in gradients), loss.view(1), correct.float().view(1)])
        self._ranks.sum(sums)
        pieces = torch.split(sums[:-2], [g.numel() for g in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))
        return sums[-2], sums[-1]

    def _precision(self) -> torch.autocast:
        # bfloat16 has float32's range, so gradients need no scaling.
        enabled = self._spec.amp and self._device.type == "cuda"
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=enabled)


def learning_rate(rates: OptimizerSpec, epoch: int) -> float:
    """The step schedule."""
    return rates.lr * rates.gamma ** sum(epoch >= step for step in rates.steps)


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """The device of `TrainerSpec.device`: each rank of a machine takes a GPU of its own.

    Raises `ConfigError` when CUDA is asked for and there is none, or too few.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; use auto or cpu, or install torch for CUDA")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(f"rank {local_rank} of this machine has no GPU: it has {torch.cuda.device_count()}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host tensor, through pinned memory and without waiting where that is possible."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@contextmanager
def enough_memory(device: torch.device, clips: int) -> Iterator[None]:
    """What is done here with so many clips is more than the GPU can hold: say what helps."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"{device} has too little memory for a batch of {clips} clips; lower batch_size, set amp: true, choose a "
            f"smaller model or augment.crop, or train on more ranks, which share the batch"
        ) from error


def _loss(scores: Scores, target_B: Tensor) -> Tensor:  # noqa: N803
    """The sum over the clips."""
    loss = functional.cross_entropy(scores.logits, target_B, reduction="sum")
    if scores.auxiliary is not None:
        loss = loss + AUXILIARY_WEIGHT * functional.cross_entropy(scores.auxiliary, target_B, reduction="sum")
    return loss

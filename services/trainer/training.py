"""A model, its optimiser, and the step, read from top to bottom.

SGD with momentum; the learning rate falls by `gamma` at the epochs named. Nothing is drawn from torch's global
generator, and dropout is seeded for each update from (job seed, trainer, update), so a training gives the same
parameters to the last bit whether or not it was stopped and resumed, and whatever else runs in the process (same
machine, same number of threads).
"""

from __future__ import annotations

from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from essp_common.errors import ConfigError, PermanentError
from essp_common.learning.models import Classifier
from essp_common.learning.randomness import seed_of
from essp_common.spec import OptimizerSpec, TrainerSpec
from services.trainer.prefetch import Batch

AUXILIARY_WEIGHT = 0.4
"""Share of the second classifier's loss (Szegedy et al., "Rethinking the Inception Architecture", 2016)."""


class Diverged(PermanentError):
    """The loss or its gradient is not a finite number; the parameters were left as they were."""

    kind = "diverged"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one batch gave."""

    loss: float
    """Mean over the batch."""
    correct: int
    clips: int


class Training:
    """One model being trained."""

    def __init__(
        self, model: Classifier, spec: TrainerSpec, device: torch.device, identity: tuple[object, ...]
    ) -> None:
        """`identity`: job seed and trainer's name, from which dropout is seeded."""
        self.model = model.to(device)
        self.updates = 0
        self._spec = spec
        self._device = device
        self._identity = identity
        rates = spec.optimizer
        self._optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rates.lr, momentum=rates.momentum, weight_decay=rates.weight_decay
        )

    def step(self, batch: Batch) -> StepResult:
        """Train on one batch. Raises `Diverged` before a parameter is touched."""
        x_BTHWC, target_B = self._on_device(batch)  # noqa: N806
        self._optimizer.param_groups[0]["lr"] = learning_rate(self._spec.optimizer, batch.plan.epoch)
        self.model.dropout.reseed(seed_of("dropout", *self._identity, self.updates))
        self._train_mode()

        self._optimizer.zero_grad(set_to_none=True)
        with self._precision():
            scores = self.model(x_BTHWC)
            loss = functional.cross_entropy(scores.logits, target_B)
            if scores.auxiliary is not None:
                loss = loss + AUXILIARY_WEIGHT * functional.cross_entropy(scores.auxiliary, target_B)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._spec.optimizer.clip_grad_norm)
        if not bool(torch.isfinite(loss) & torch.isfinite(norm)):
            raise Diverged(
                f"loss {loss.item():g}, gradient norm {norm.item():g} at update {self.updates} of epoch "
                f"{batch.plan.epoch}; lower optimizer.lr or optimizer.clip_grad_norm, and start again"
            )
        self._optimizer.step()
        self.updates += 1

        correct = int((scores.logits.argmax(dim=1) == target_B).sum())
        return StepResult(loss.item(), correct, len(target_B))

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
        return on_device(torch.from_numpy(batch.stacked()), self._device), on_device(
            torch.from_numpy(batch.labels()), self._device
        )

    def _precision(self) -> torch.autocast:
        # bfloat16 has float32's range, so gradients need no scaling.
        enabled = self._spec.amp and self._device.type == "cuda"
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=enabled)


def learning_rate(rates: OptimizerSpec, epoch: int) -> float:
    """The step schedule."""
    return rates.lr * rates.gamma ** sum(epoch >= step for step in rates.steps)


def choose_device(wanted: str) -> torch.device:
    """The device of `TrainerSpec.device`. Raises `ConfigError` when CUDA is asked for and there is none."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; use auto or cpu, or install torch for CUDA")
    return torch.device("cuda")


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of a host tensor, through pinned memory and without waiting where that is possible."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

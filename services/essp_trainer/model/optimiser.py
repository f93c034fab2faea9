"""SGD with momentum, gradient clipping and, in half precision, gradient scaling.

    loss ──scaled──▶ backward ──▶ gradients, summed over the ranks ──clip──▶ norm ──step──▶ parameters

In float16 small gradients would become zero, so the loss is multiplied by a large factor before the backward pass
(Micikevicius et al., "Mixed Precision Training", 2018). A factor that was too large shows as a gradient that is not
finite: such a step is left out and the factor halved. The factor is part of the state, so that a resumed training takes
and leaves out the very same steps. Ranks sum before they look, so all of them see the same, and do the same.
"""

from __future__ import annotations

import safetensors.torch
import torch
from torch import Tensor, nn

from essp_common.job.spec import OptimizerSpec
from essp_common.learning.models import Classifier

_SCALE, _TRACKER = "gradient/scale", "gradient/growth_tracker"
"""Beside the momentum of each parameter; no parameter's name has a stroke in it."""
_LEAST_SCALE = 1.0
"""Where gradients overflow at this factor, the fault is not the factor's."""


class Optimiser:
    """Moves the parameters of one model."""

    def __init__(self, model: Classifier, rates: OptimizerSpec, scaling: bool) -> None:
        """`scaling`: gradients are made in float16."""
        self._model = model
        self._limit = rates.clip_grad_norm
        self._optimizer = torch.optim.SGD(
            _groups(model, rates), lr=rates.lr, momentum=rates.momentum, nesterov=rates.nesterov
        )
        self._scaler = torch.amp.GradScaler(model.mean.device.type, enabled=scaling)

    def start(self, rate: float) -> None:
        """Begin a step at this learning rate, without gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad(set_to_none=True)

    def scaled(self, loss: Tensor) -> Tensor:
        """What to take the gradient of."""
        return self._scaler.scale(loss)

    def clip(self) -> Tensor:
        """Scale all gradients down to the limit together; their norm before that."""
        self._scaler.unscale_(self._optimizer)
        return nn.utils.clip_grad_norm_(self._model.parameters(), self._limit)

    @property
    def forgives(self) -> bool:
        """Whether a gradient that is not finite may be the scale's fault: the step is then left out."""
        return self._scaler.is_enabled() and self._scaler.get_scale() > _LEAST_SCALE

    def step(self) -> None:
        """Move the parameters, unless a gradient is not finite, and let the scale follow."""
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Tensor]:
        """The momentum of every parameter, by name, and the scale; as they are, not copied."""
        held = {
            name: self._optimizer.state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
            if self._optimizer.state.get(parameter, {}).get("momentum_buffer") is not None
        }
        if self._scaler.is_enabled():
            scaling = self._scaler.state_dict()
            held[_SCALE] = torch.tensor(scaling["scale"], dtype=torch.float64)
            held[_TRACKER] = torch.tensor(scaling["_growth_tracker"])
        return held

    def load(self, data: bytes) -> None:
        """Take over a `state` in the safetensors format."""
        held = safetensors.torch.load(data)
        for name, parameter in self._model.named_parameters():
            if name in held:
                # In the memory layout of the parameter: another one may round differently in the last bit.
                buffer = torch.empty_like(parameter, requires_grad=False)
                self._optimizer.state[parameter]["momentum_buffer"] = buffer.copy_(held[name])
        if self._scaler.is_enabled() and _SCALE in held:
            scaling = {"scale": held[_SCALE].item(), "_growth_tracker": int(held[_TRACKER].item())}
            self._scaler.load_state_dict(self._scaler.state_dict() | scaling)


def _groups(model: nn.Module, rates: OptimizerSpec) -> list[dict[str, object]]:
    """Parameters that decay, and those that do not."""
    decaying = [p for p in model.parameters() if rates.decay_all or p.ndim > 1]
    others = [p for p in model.parameters() if not rates.decay_all and p.ndim <= 1]
    groups = ((decaying, rates.weight_decay), (others, 0.0))
    return [{"params": parameters, "weight_decay": decay} for parameters, decay in groups if parameters]

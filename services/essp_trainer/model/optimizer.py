"""SGD with momentum or AdamW, gradient clipping and, in half precision, gradient scaling.

    loss ──scaled──▶ backward ──▶ gradients, summed over the ranks ──clip──▶ norm ──step──▶ parameters

In float16, small gradients would become zero, so the loss is multiplied by a large factor before the backward pass
(Micikevicius et al., "Mixed Precision Training", 2018). A factor that was too large shows as a non-finite gradient: the
step is skipped and the factor halved. The factor is part of the state, so that a resumed training takes and skips the
same steps. Ranks sum gradients before they check them, so all ranks decide alike.

On a GPU, one kernel updates all parameters and decides itself whether to skip, so the host does not wait.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from essp_common.errors import ConfigError
from essp_common.job.trainer_spec import OptimizerSpec
from essp_engine.learning.models import Classifier

_SCALE, _TRACKER = "gradient/scale", "gradient/growth_tracker"
_STEPS, _SQUARE = "steps/", "square/"
"""Prefixes of further tensors per parameter, in addition to the momentum, which has the parameter's name; no
parameter's name contains a slash. AdamW also has the average of squares, and the number of steps, which is smaller for
parameters that were frozen at first."""
_NETWORK = "backbone."
"""Prefix of all parameter names, which a job does not write."""
_PLACES = frozenset(
    {
        *("relative_position_bias_table", "rel_pos_h", "rel_pos_w", "rel_pos_t", "rel_pos_hw"),
        *("absolute_pos_embed", "pos_embed", "pos_embed_spatial", "pos_embed_temporal", "pos_embed_class"),
        *("pos_embedding", "position_embedding", "spatial_pos", "temporal_pos", "class_pos"),
        *("cls_token", "class_token"),
    }
)
"""Suffixes of the names of a transformer's position and class embeddings. Like biases, they are exempt from weight
decay, as in `no_weight_decay` of the authors of Swin and MViT and of timm, and in torchvision's recipes."""
_LEAST_SCALE = 1.0
"""If gradients overflow even at this factor, the factor is not the cause."""


class Optimizer:
    """Updates the parameters of one model."""

    def __init__(self, model: Classifier, rates: OptimizerSpec, scaling: bool, fused: bool = False) -> None:
        """`scaling`: gradients are computed in float16, so the loss is scaled. `fused`: one kernel for all parameters,
        which skips non-finite steps itself."""
        self._model = model
        self._limit = rates.clip_grad_norm
        self._fused = fused
        self._adam = rates.kind == "adamw"
        self._optimizer: torch.optim.Optimizer
        if self._adam:
            self._optimizer = torch.optim.AdamW(_groups(model, rates), lr=rates.lr, betas=rates.betas, fused=fused)
        else:
            self._optimizer = torch.optim.SGD(
                _groups(model, rates), lr=rates.lr, momentum=rates.momentum, nesterov=rates.nesterov, fused=fused
            )
        self._has_momentum = self._adam or bool(rates.momentum)
        if fused and not self._adam and rates.momentum:
            # If the kernel skipped the first step, torch would leave the momentum uninitialised.
            for parameter in model.parameters():
                self._optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
        self._scaler = torch.amp.GradScaler(model.mean.device.type, enabled=scaling)

    def start(self, rate: float) -> None:
        """Begin a step: set the learning rate and clear the gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self._optimizer.zero_grad(set_to_none=True)

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, whose gradient is to be computed."""
        return self._scaler.scale(loss)

    def clip(self) -> Tensor:
        """Clip the norm of all gradients to the limit. Returns the norm before clipping."""
        self._scaler.unscale_(self._optimizer)
        return nn.utils.clip_grad_norm_(self._model.parameters(), self._limit)

    def may_skip(self) -> Tensor:
        """Return whether a non-finite gradient may be due to the scale, so that `step` skips the update."""
        return self._scaler.scale(torch.ones((), device=self._model.mean.device)) > _LEAST_SCALE

    def step(self, finite: Tensor) -> None:
        """Update the parameters unless a gradient is non-finite, and adapt the scale.

        `finite`: whether all gradients are finite. Only a fused optimizer reads it; otherwise the gradients are known
        to be finite, or the scaler may skip the step.
        """
        if self._fused and not self._scaler.is_enabled():
            # What GradScaler would pass to a fused optimizer.
            self._optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def state(self) -> dict[str, Tensor]:
        """Return the momentum of every parameter by name, AdamW's squares and steps, and the scale; not copied."""
        momentum = "exp_avg" if self._adam else "momentum_buffer"
        known = [
            (name, state)
            for name, parameter in self._model.named_parameters()
            if (state := self._optimizer.state.get(parameter, {})).get(momentum) is not None
        ]
        held = {name: state[momentum] for name, state in known}
        if self._adam and known:
            held |= {_SQUARE + name: state["exp_avg_sq"] for name, state in known}
            held |= {_STEPS + name: state["step"] for name, state in known}
        if self._scaler.is_enabled():
            scaling = self._scaler.state_dict()
            held[_SCALE] = torch.tensor(scaling["scale"], dtype=torch.float64)
            held[_TRACKER] = torch.tensor(scaling["_growth_tracker"])
        return held

    def state_to_come(self) -> dict[str, Tensor]:
        """Return shapes and types of `state` once every parameter has been updated; on the device `meta`."""
        to_come = {
            before + name: torch.empty_like(parameter, device="meta")
            for before in ("", _SQUARE)[: 1 + self._adam]
            for name, parameter in self._model.named_parameters()
            if self._has_momentum
        }
        if self._adam:
            names = [name for name, _ in self._model.named_parameters()]
            to_come |= {_STEPS + name: torch.empty((), device="meta") for name in names}
        return to_come | {name: tensor.to("meta") for name, tensor in self.state().items()}

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Restore a `state`."""
        for name, parameter in self._model.named_parameters():
            if name not in held:
                continue
            state = self._optimizer.state[parameter]
            if self._adam:
                state["exp_avg"] = _like(parameter, held[name])
                state["exp_avg_sq"] = _like(parameter, held[_SQUARE + name])
                where = parameter.device if self._fused else torch.device("cpu")
                state["step"] = held[_STEPS + name].to(where, torch.float32, copy=True)
            else:
                state["momentum_buffer"] = _like(parameter, held[name])
        if self._scaler.is_enabled() and _SCALE in held:
            scaling = {"scale": held[_SCALE].item(), "_growth_tracker": int(held[_TRACKER].item())}
            self._scaler.load_state_dict(self._scaler.state_dict() | scaling)


def _like(parameter: Tensor, values: Tensor) -> Tensor:
    """Return a copy with the parameter's memory layout: another layout may round differently in the last bit."""
    return torch.empty_like(parameter, requires_grad=False).copy_(values)


def _groups(model: Classifier, rates: OptimizerSpec) -> list[dict[str, object]]:
    """Group the parameters by the factor of their rate, and by whether they decay."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decays = rates.decay_all or (parameter.ndim > 1 and name.rpartition(".")[2] not in _PLACES)
        groups.setdefault((_factor(rates, name), decays), []).append(parameter)
    unused = [path for path in rates.layers if not any(_below(name, path) for name, _ in model.named_parameters())]
    if unused:
        layers = ", ".join(name for name, _ in model.backbone.named_children())
        raise ConfigError(
            f"the network has no {unused[0]!r}; at the top it has {layers}", field="optimizer.layers", code="unknown"
        )
    return [
        {"params": parameters, "weight_decay": rates.weight_decay if decays else 0.0, "factor": factor}
        for (factor, decays), parameters in sorted(groups.items(), key=lambda group: not group[0][1])
    ]


def stands(rates: OptimizerSpec, name: str) -> bool:
    """Whether the job freezes a parameter or a layer, with the rate 0."""
    return _factor(rates, name) == 0


def _factor(rates: OptimizerSpec, name: str) -> float:
    """Return the factor of the rate of a parameter, or of a layer's parameters."""
    fitting = [path for path in rates.layers if _below(name, path)]
    return rates.layers[max(fitting, key=len)] if fitting else 1.0


def _below(name: str, path: str) -> bool:
    """Whether the parameter or layer with this name is the one at the path, or inside it."""
    inside = f"{name.removeprefix(_NETWORK)}."
    return not path or inside.startswith(f"{path}.")

"""Batch normalisation for batches that are too small for it, and for a batch that is divided among several ranks.

The last batch of an epoch may be one clip, and clips that cannot be decoded make any batch smaller. If a channel then
has a single value, there is no variance to divide by. torch's layers raise an error; here the layer normalises by its
running statistics, as in evaluation, and does not change them. Other layers, which have more values, are not affected.

If each rank normalised by its own part, the result of training would depend on the number of ranks, and get worse with
few clips per rank. So during training, mean and variance are computed over the whole batch, as in torch's
SyncBatchNorm, which does not support host memory, and confuses types when a rank's part is empty under autocast.

The statistics of ranks are combined without differences of large squares (Chan et al., "Algorithms for computing the
sample variance", 1983). Each layer exchanges 2 C + 1 numbers per rank in the forward pass and 2 C in the backward pass.

A layer with its own `forward`, such as timm's `BatchNormAct2d`, may do more than normalise, so it is left unchanged.
Its computation cannot be divided among ranks.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from essp_common.errors import ConfigError


class Peers(Protocol):
    """The ranks that share one batch."""

    rank: int
    world_size: int

    def sum(self, tensor: Tensor) -> None:
        """Replace each element by its sum over all ranks."""


class AnyBatchNorm(_BatchNorm):
    """Batch normalisation that also accepts a batch with one value per channel, or with none."""

    def __init__(self, own: _BatchNorm) -> None:
        """Uses the parameters and statistics of `own`."""
        super().__init__(own.num_features, own.eps, own.momentum, own.affine, own.track_running_stats)
        self._parameters, self._buffers = own._parameters, own._buffers
        self.train(own.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x`. During training, also update the running statistics, if the batch has any."""
        if self.training and x.numel() <= self.num_features:
            return self.by_running_statistics(x)
        return super().forward(x)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept any number of dimensions after the channels: the replaced layer was made for its network."""

    def by_running_statistics(self, x: Tensor) -> Tensor:
        """Normalise `x` as in evaluation."""
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


class SharedBatchNorm(AnyBatchNorm):
    """`AnyBatchNorm` for a batch divided among ranks. A rank's part may be empty."""

    def __init__(self, own: _BatchNorm, peers: Peers) -> None:
        """Uses the parameters and statistics of `own`."""
        super().__init__(own)
        self._peers = peers

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x`, in its own type. During training, also update the running statistics."""
        if not self.training:
            return super().forward(x)
        own = _statistics(x)
        table = own.new_zeros(self._peers.world_size, len(own))
        table[self._peers.rank] = own
        # Every rank must reach this exchange, in the same order of layers, even with an empty part.
        self._peers.sum(table)
        count, mean, variance = _combined(table)
        # Reading the count waits for the device, so it is read only if this part has at most one value per channel.
        if x.numel() <= self.num_features and count.item() <= 1:
            return self.by_running_statistics(x)
        self._follow(count, mean, variance)
        scale = torch.rsqrt(variance + self.eps)
        normalised: Tensor = _Normalise.apply(x, mean, scale, count, self._peers)  # type: ignore[no-untyped-call]
        if self.weight is not None:
            normalised = normalised * _by_channel(self.weight, x)
        if self.bias is not None:
            normalised = normalised + _by_channel(self.bias, x)
        return normalised.to(x.dtype)

    def _follow(self, count: Tensor, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * count / (count - 1), share)


class _Normalise(torch.autograd.Function):
    """`(x - mean) / deviation`. Its gradient includes that mean and deviation depend on the clips of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, scale: Tensor, count: Tensor, peers: Peers) -> Tensor:
        normalised = (_precise(x) - _by_channel(mean, x)) * _by_channel(scale, x)
        ctx.save_for_backward(normalised, scale, count)
        ctx.peers, ctx.dtype = peers, x.dtype
        return normalised

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normalised, scale, count = ctx.saved_tensors
        gradient = _precise(gradients[0])
        sums = torch.stack([gradient.sum(_positions(gradient)), (gradient * normalised).sum(_positions(gradient))])
        ctx.peers.sum(sums)
        mean, slope = sums / count
        change = gradient - _by_channel(mean, gradient) - normalised * _by_channel(slope, gradient)
        return (change * _by_channel(scale, gradient)).to(ctx.dtype), None, None, None, None


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Path -> each batch normalisation of `model`, in the order of its modules."""
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, _BatchNorm)}


def take_any_batch(model: nn.Module, peers: Peers) -> None:
    """Let every batch normalisation of `model` that is torch's own accept any batch.

    With several ranks, they normalise by the batch of all ranks. Names and parameters stay the same. Raises
    `ConfigError` for several ranks and a layer that has its own computation, or tracks statistics of single clips.
    """
    if peers.world_size > 1:
        _refuse_statistics_of_clips(model)
    made: dict[nn.Module, AnyBatchNorm] = {}
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(layer, _BatchNorm) or isinstance(layer, AnyBatchNorm):
            continue
        if type(layer).forward not in _FORWARDS:
            if peers.world_size == 1:
                continue
            raise ConfigError(
                f"{path} of the network is a {type(layer).__name__} with its own forward, which would normalise "
                "the part of each rank by itself; train on one rank, or use a batch normalisation of torch and put "
                "what else it does behind it",
                code="unsupported",
            )
        if layer not in made:
            made[layer] = SharedBatchNorm(layer, peers) if peers.world_size > 1 else AnyBatchNorm(layer)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, made[layer])


def _refuse_statistics_of_clips(model: nn.Module) -> None:
    for path, layer in model.named_modules():
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise ConfigError(
                f"{path} of the network is a {type(layer).__name__} with running statistics, which would be those of "
                "each rank's own clips; train on one rank, or make it with track_running_stats=False",
                code="unsupported",
            )


_FORWARDS = (_BatchNorm.forward, SyncBatchNorm.forward)
"""The `forward` of torch's own layers."""


def _statistics(x: Tensor) -> Tensor:
    """Count, means and sums of squared deviations of this rank's part: `(1 + 2 C,)`."""
    values = _precise(x.detach())
    count = values.new_tensor([values.numel() // values.shape[1]])
    if not values.numel():
        return torch.cat([count, values.new_zeros(2 * values.shape[1])])
    variance, mean = torch.var_mean(values, _positions(values), correction=0)
    return torch.cat([count, mean, variance * count])


def _combined(table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and variance of the whole batch, from a table with one row of `_statistics` per rank."""
    counts, (means, deviations) = table[:, :1], table[:, 1:].chunk(2, dim=1)
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    variance = (deviations + counts * (means - mean).square()).sum(0) / count
    return count, mean, variance


def _precise(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    """Values of channels, in a shape that broadcasts with `x`."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


def _positions(x: Tensor) -> list[int]:
    """All dimensions except the channels."""
    return [0, *range(2, x.ndim)]

"""Sums the gradients of all ranks while the backward pass is running.

    backward ──last layers' gradients──▶ bucket ──▶ exchange ┐
             ──earlier layers'─────────▶ bucket ──▶ exchange ├─▶ the sums, replacing the gradients
             ──first layers'───────────▶ bucket ──▶ exchange ┘

 Parameters are put into buckets in reverse order, which is roughly the order in which backward reaches them. A bucket
is sent as soon as it is full and all previous ones are sent, so all ranks send the same buckets in the same order (as
Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020). A rank without a clip
computes zero gradients.

A network whose path depends on its input, such as a mixture of experts, may use a parameter on some ranks but not on
others. All ranks send the same numbers nevertheless: zeros for an unused parameter, and for each parameter whether it
was used. A parameter that no rank has used keeps no gradient, as with a single rank. If batch normalisations also
exchange numbers during the backward pass, such parameters have separate buckets (`essp_engine/learning/branches.py`),
which are sent after it: a bucket that is full on only one rank would be sent before a normalisation there, but after it
elsewhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

BUCKET_BYTES = 25 * 2**20
"""Size of the gradients in one exchange: large enough to saturate the network, small enough to begin early."""


class Exchange(Protocol):
    """A sum over the ranks that is under way."""

    def wait(self) -> None:
        """Wait for the sum; until then the tensor must not be used. Raises `RankLost`."""


class Summing(Protocol):
    """The ranks that share one batch."""

    world_size: int

    def begin_sum(self, tensor: Tensor) -> Exchange:
        """Begin to replace each element by its sum over all ranks."""


class _Sent(NamedTuple):
    """A bucket that is under way."""

    parameters: list[Parameter]
    gradients: list[Tensor]
    missing: bool
    """Whether this rank did not use one of the parameters in this step."""
    packed: Tensor
    """The gradients, then for each parameter 1 if this rank used it, else 0."""
    exchange: Exchange


class GradientSum:
    """Replaces the gradients of one model by their sums over the ranks. With one rank it does nothing."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        ranks: Summing,
        bucket_bytes: int = BUCKET_BYTES,
        waiting: Collection[Parameter] = (),
    ) -> None:
        """`waiting`: parameters whose gradients are sent after the backward pass."""
        self._ranks = ranks
        self._buckets: list[list[Parameter]] = []
        self._early = 0
        """Number of buckets that are sent during the backward pass."""
        if ranks.world_size > 1:
            learnt = [parameter for parameter in reversed(list(parameters)) if parameter.requires_grad]
            self._buckets = list(_buckets([each for each in learnt if each not in waiting], bucket_bytes))
            self._early = len(self._buckets)
            self._buckets += _buckets([each for each in learnt if each in waiting], bucket_bytes)
        self._missing = [0] * len(self._buckets)
        """For each bucket: the number of gradients that are still to come."""
        self._next = len(self._buckets)
        """The bucket to send next."""
        self._sent: list[_Sent] = []
        # weak: a hook with a strong reference would keep the model, and the ranks' connections, alive
        own = weakref.ref(self)
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(_tell, own, number))  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Start sending. Call it before the backward pass that completes the gradients; earlier passes only accumulate
        them."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._next = 0

    def finish(self) -> None:
        """Wait for the sums, after the backward pass. Raises `RankLost`."""
        # the waiting buckets, and those with parameters that were not used in this step
        while self._next < len(self._buckets):
            self._send()
        sent, self._sent = self._sent, []
        # Synchronisation point: the optimizer may use the gradients only when every exchange is over.
        for each in sent:
            each.exchange.wait()
            sizes = [gradient.numel() for gradient in each.gradients]
            *pieces, parts = torch.split(each.packed, [*sizes, len(sizes)])
            sums = [piece.view_as(gradient) for piece, gradient in zip(pieces, each.gradients, strict=True)]
            torch._foreach_copy_(each.gradients, sums)
            if each.missing:  # only then, since reading the tensor waits for the device
                for number, ranks in enumerate(parts.tolist()):
                    if not ranks:
                        each.parameters[number].grad = None

    def came(self, number: int) -> None:
        """A gradient of this bucket is complete."""
        self._missing[number] -= 1
        # Strictly in order, even if a later bucket is full first: exchanges must have the same order on all ranks.
        while self._next < self._early and not self._missing[self._next]:
            self._send()

    def _send(self) -> None:
        parameters = [parameter for parameter in self._buckets[self._next] if parameter.requires_grad]
        self._next += 1
        if not parameters:
            return
        missing = [parameter.grad is None for parameter in parameters]
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        parts = gradients[0].new_ones(len(missing))
        if any(missing):
            parts = parts.masked_fill(torch.tensor(missing, device=parts.device), 0)
        packed = torch.cat([*(gradient.flatten() for gradient in gradients), parts])
        self._sent.append(_Sent(parameters, gradients, any(missing), packed, self._ranks.begin_sum(packed)))


def _tell(summed: weakref.ref[GradientSum], number: int, _: Tensor) -> None:
    held = summed()
    if held is not None:
        held.came(number)


def _buckets(parameters: Iterable[Parameter], most_bytes: int) -> Iterator[list[Parameter]]:
    bucket: list[Parameter] = []
    held = 0
    for parameter in parameters:
        if bucket and held + parameter.nbytes > most_bytes:
            yield bucket
            bucket, held = [], 0
        bucket.append(parameter)
        held += parameter.nbytes
    if bucket:
        yield bucket

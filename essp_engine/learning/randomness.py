"""Random numbers that depend on names and counters, not on earlier draws.

Several trainers may run in threads of one process, and each may be stopped and resumed at any point. So code in
`essp_engine.learning` does not draw from torch's global generator, with one exception.

Augmentation and dropout create their generators from (seed of the training, epoch, index or step). The exception is
initial weights, because torchvision accepts no generator: they are drawn under a lock, and the global state is
restored.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from essp_common.runtime.forks import Mutex

_INITIALISING = Mutex()
_SELU = 1.0507009873554805 * 1.6732632423543772
"""The negated limit of SELU at minus infinity."""


def seed_of(*parts: object) -> int:
    """A 63-bit seed by hashing names and numbers. Different parts give different seeds."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def counter_generator(*parts: object) -> np.random.Generator:
    """NumPy's Philox keyed by names and numbers (Salmon et al., SC'11): the same as `Philox(key=seed_of(*parts))`."""
    key: Any = _Key(seed_of(*parts))  # the types of NumPy know only one kind of seed sequence
    return np.random.Generator(np.random.Philox(key))


class _Key(ISeedSequence):
    """A key in the place of a seed. Given as a key, each generator would first ask the system for a seed that it does
    not use, which takes three times as long as all the rest."""

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        """The two words of the key."""
        return np.array([self._key, 0], np.uint64)


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Within this block, torch's global generator starts from `seed`. Its state is restored after the block.

    One thread at a time enters the block.
    """
    with _INITIALISING.held, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch on this rank."""

    clips: int
    """Clips of the whole batch."""
    rows: tuple[int, ...]
    """Rows of the batch on this rank, ascending."""


class DropoutGenerator:
    """The generator that the dropout layers of one network share, on any device.

    It draws for the whole batch and keeps the rows of this rank's clips. So the dropout of a clip does not depend on
    the number of ranks.
    """

    def __init__(self) -> None:
        self._seed = 0
        self._share: Share | None = None
        self._generators: dict[torch.device, torch.Generator] = {}
        self._rows: dict[torch.device, Tensor] = {}

    def reseed(self, seed: int, share: Share | None = None) -> None:
        """Start the sequence of one optimizer step on `share` (None: this rank holds the whole batch)."""
        self._seed, self._share = seed, share
        self._rows.clear()
        for generator in self._generators.values():
            generator.manual_seed(seed)

    def kept(self, x: Tensor, p: float) -> Tensor:
        """Ones with probability `p`, else zeros, in the shape of `x`: `(clips of this rank * frames, ...)`."""
        generator = self._on(x.device)
        if self._share is None or len(self._share.rows) == self._share.clips:
            # Drawn in row order, as below, independent of the memory layout of `x`.
            return torch.empty_like(x, memory_format=torch.contiguous_format).bernoulli_(p, generator=generator)
        frames = x.shape[0] // len(self._share.rows)
        whole = x.new_empty(self._share.clips, frames, *x.shape[1:]).bernoulli_(p, generator=generator)
        return whole[self._rows_on(x.device)].flatten(0, 1)

    def _rows_on(self, device: torch.device) -> Tensor:
        """The rows on a device, sent once per step without blocking."""
        if device not in self._rows:
            assert self._share is not None
            rows = torch.tensor(self._share.rows, dtype=torch.int64)
            self._rows[device] = rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows
        return self._rows[device]

    def _on(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


class SeededDropout(nn.Module):
    """Inverted dropout (Srivastava et al., JMLR 2014) that draws from a `DropoutGenerator`."""

    dimensions: ClassVar[int | None] = None
    """Elements are kept or dropped together if they share the first `dimensions` indices; None: element by element."""

    def __init__(self, p: float, source: DropoutGenerator) -> None:
        super().__init__()
        self.p = p
        self._source = source

    def forward(self, x: Tensor) -> Tensor:
        """In training, drop with probability `p`."""
        if not self.training or self.p == 0 or not x.numel():
            return x
        if self.p == 1:
            return x * 0
        drawn = x
        if self.dimensions is not None:
            drawn = x.new_empty(*x.shape[: self.dimensions], *[1] * (x.ndim - self.dimensions))
        return self._dropped(x, self._source.kept(drawn, 1 - self.p))

    def extra_repr(self) -> str:
        """Shown when the network is printed."""
        return f"p={self.p}"

    def _dropped(self, x: Tensor, kept: Tensor) -> Tensor:
        """Zero the dropped elements, and scale the rest to keep the mean."""
        return x * kept.div_(1 - self.p)


class SeededDepth(SeededDropout):
    """Stochastic depth by rows (Huang et al., ECCV 2016): drops the branch of a whole clip."""

    dimensions = 1


class SeededChannels(SeededDropout):
    """Dropout of whole channels (Tompson et al., CVPR 2015)."""

    dimensions = 2


class SeededAlpha(SeededDropout):
    """Alpha dropout (Klambauer et al., NeurIPS 2017), which keeps mean and variance after SELU."""

    def _dropped(self, x: Tensor, kept: Tensor) -> Tensor:
        scale = 1 / math.sqrt((1 + self.p * _SELU**2) * (1 - self.p))
        return (x * kept + _SELU * (kept - 1)) * scale + _SELU * scale * self.p


class SeededAlphaChannels(SeededAlpha):
    """Alpha dropout of whole channels."""

    dimensions = 2

"""Random numbers that depend on names and counters, never on who drew before.

Several trainings may run in threads of one process, and each may be stopped and resumed anywhere. So nothing in
`essp_common.learning` draws from torch's global generator: augmentation and dropout make their generators from
(job seed, trainer, epoch, index or step), and initial weights, for which torchvision offers no generator, are
drawn under a lock with the global state put back afterwards.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

_INITIALISING = threading.Lock()


def seed_of(*parts: object) -> int:
    """A 63-bit seed from names and numbers; different parts, different seed."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def counter_generator(*parts: object) -> np.random.Generator:
    """NumPy's Philox keyed by names and numbers (Salmon et al., SC'11)."""
    return np.random.Generator(np.random.Philox(key=seed_of(*parts)))


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Draw a network's initial weights from `seed`, leaving the global generator as it was. One thread at a time."""
    with _INITIALISING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True, slots=True)
class Share:
    """Which clips of a batch are here; the others are on other ranks."""

    clips: int
    """Of the whole batch."""
    rows: tuple[int, ...]
    """Places within it of those that are here, ascending."""


class DropoutGenerator:
    """The generator shared by the dropout layers of one network, on whatever device they run.

    It draws for the whole batch and keeps what is for the clips that are here, so that what is dropped of a clip does
    not depend on how many ranks share the batch.
    """

    def __init__(self) -> None:
        self._seed = 0
        self._share: Share | None = None
        self._generators: dict[torch.device, torch.Generator] = {}

    def reseed(self, seed: int, share: Share | None = None) -> None:
        """Start the sequence that belongs to one optimiser step on `share` (None: all of the batch is here)."""
        self._seed, self._share = seed, share
        for generator in self._generators.values():
            generator.manual_seed(seed)

    def kept(self, x: Tensor, p: float) -> Tensor:
        """Ones with probability `p`, zeros otherwise, in the shape of `x`: `(clips here * frames, ...)`."""
        generator = self._on(x.device)
        if self._share is None:
            return torch.empty_like(x).bernoulli_(p, generator=generator)
        frames = x.shape[0] // len(self._share.rows)
        whole = x.new_empty(self._share.clips, frames, *x.shape[1:]).bernoulli_(p, generator=generator)
        return whole[list(self._share.rows)].flatten(0, 1)

    def _on(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


class SeededDropout(nn.Module):
    """Inverted dropout (Srivastava et al., JMLR 2014) with a generator of its own."""

    def __init__(self, p: float, source: DropoutGenerator) -> None:
        super().__init__()
        self.p = p
        self._source = source

    def forward(self, x: Tensor) -> Tensor:
        """Zero each element with probability `p` while training, and scale the rest to keep the mean."""
        if not self.training or self.p == 0 or not x.numel():
            return x
        return x * self._source.kept(x, 1 - self.p).div_(1 - self.p)

    def extra_repr(self) -> str:
        """Shown when the network is printed."""
        return f"p={self.p}"

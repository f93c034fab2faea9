"""What the ranks of a training do next. They agree before each batch by one all-reduce of a few numbers.

Each rank passes its control signal, whether its share of the next batch is ready, and which clips are in it; the
maximum over the ranks counts. So all leave together, all train together, and each knows the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch

from essp_common.learning.randomness import Share
from essp_common.messages.ordered import PhaseEnd
from essp_trainer.data.device import ClipShape
from essp_trainer.data.prefetch import Batch
from essp_trainer.distributed.ranks import Ranks

_FIXED = 7
"""Numbers that come before those of the clips."""


class ControlSignal(IntEnum):
    """What the job's control asks of a training; the greatest signal of all ranks counts."""

    CONTINUE = 0
    PAUSE = 1
    LEAVE = 2


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know of the next batch."""

    signal: ControlSignal
    save: bool
    """Rank 0 asks for a checkpoint."""
    written: bool
    """Rank 0 has written the checkpoint in progress, or failed to."""
    ready: bool
    """Every rank has its share of the next batch, or the end of the phase."""
    shape: ClipShape
    """That of the clips of all ranks; all 0: the batch has no clip."""
    share: Share
    """Which of its clips this rank has."""


class Consensus:
    """Agrees with the other ranks on what comes next."""

    def __init__(self, ranks: Ranks, signal: Callable[[], ControlSignal], batch_size: int) -> None:
        """`signal`: the control signal of this rank, asked before each batch. All ranks pass the same `batch_size`."""
        self.ranks = ranks
        self.signal = signal
        self._batch_size = batch_size

    def agree(self, item: Batch | PhaseEnd | None, save: bool = False, written: bool = False) -> Agreement:
        """What all ranks do next.

        `item`: what this rank has ready. `save`, `written`: as in `Agreement`; only those of rank 0 count.
        """
        own: list[int] = []
        rank_zero = [int(self.ranks.is_rank_zero and flag) for flag in (save, written)]
        numbers = torch.zeros(_FIXED + self._batch_size, dtype=torch.int64)
        numbers[:4] = torch.tensor([int(self.signal()), *rank_zero, int(item is None)])
        if isinstance(item, Batch) and item.input is not None:
            own = [clip.clip.index - item.begin for clip in item.clips]
            numbers[4:7] = torch.tensor(item.input.shape)
            numbers[[_FIXED + offset for offset in own]] = 1
        self.ranks.max(numbers)
        present = numbers[_FIXED:].nonzero().flatten().tolist()
        return Agreement(
            signal=ControlSignal(int(numbers[0])),
            save=bool(numbers[1]),
            written=bool(numbers[2]),
            ready=not numbers[3],
            shape=ClipShape(int(numbers[4]), int(numbers[5]), bool(numbers[6])),
            share=Share(len(present), tuple(present.index(offset) for offset in own)),
        )

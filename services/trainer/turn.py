"""What the ranks of a training do next: agreed on before each batch, in one exchange of a few numbers.

Each rank says what is wanted of it, whether its share of the next batch is ready, and which clips are in it; the
greatest number of all counts. So all leave together, all train together, and each knows the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from essp_common.learning.randomness import Share
from essp_common.ordered import PassEnd
from services.trainer.prefetch import Batch
from services.trainer.ranks import Ranks


class Wish(IntEnum):
    """What is wanted of a training from outside; the greatest of all ranks' wishes counts."""

    GO_ON = 0
    PAUSE = 1
    LEAVE = 2


@dataclass(frozen=True, slots=True)
class Turn:
    """What all ranks know of the next batch."""

    wish: Wish
    save: bool
    """Rank 0 wants a checkpoint."""
    ready: bool
    """Every rank has its share of the next batch, or the end of the pass."""
    channels: int
    """Of the frames of its clips; 0: there is no clip in it."""
    share: Share
    """Which of its clips are here."""


def agree(ranks: Ranks, wish: Wish, save: bool, item: Batch | PassEnd | None, batch_size: int) -> Turn:
    """What all ranks do next. `item`: what this one has ready; each passes the same `batch_size`."""
    own: list[int] = []
    numbers = torch.zeros(4 + batch_size, dtype=torch.int64)
    numbers[:3] = torch.tensor([int(wish), int(save), int(item is None)])
    if isinstance(item, Batch) and item.frames:
        own = [clip.clip.index - item.begin for clip in item.clips]
        numbers[3] = item.frames[0].shape[-1]
        numbers[[4 + offset for offset in own]] = 1
    ranks.max(numbers)
    present = numbers[4:].nonzero().flatten().tolist()
    return Turn(
        wish=Wish(int(numbers[0])),
        save=bool(numbers[1]),
        ready=not numbers[2],
        channels=int(numbers[3]),
        share=Share(len(present), tuple(present.index(offset) for offset in own)),
    )

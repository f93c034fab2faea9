"""What the ranks of a training do next. Before each batch they agree with one all-reduce of a few numbers.

Each rank contributes its control signal, whether its share of the next batch is ready, and which clips are in it; the
maximum over the ranks counts. So all leave together, all train together, and each knows the whole batch. Of the changes
of the running job, the ones that rank 0 knows count: all ranks apply them before the same batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from essp_common.pb.v1.messages_pb2 import Change, Control
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.learning.randomness import Share
from essp_engine.loading.batch import Batch, ClipShape
from essp_trainer.distributed.ranks import Ranks

_FIXED = 8
"""Count of the numbers that precede the clip indices."""


class ControlSignal(IntEnum):
    """What the job's control asks of a training; the largest signal of all ranks counts."""

    CONTINUE = 0
    PAUSE = 1
    LEAVE = 2


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know about the next batch."""

    signal: ControlSignal
    save: bool
    """Rank 0 asks for a checkpoint."""
    written: bool
    """A checkpoint of rank 0 has become durable or failed."""
    changes: int
    """How many changes of the job rank 0 knows."""
    ready: bool
    """Every rank has its share of the next batch, or has reached the end of the phase."""
    shape: ClipShape
    """The shape of the clips on all ranks; all 0 if the batch has no clip."""
    share: Share
    """The clips of the batch that this rank has."""


class Consensus:
    """Agrees with the other ranks on what comes next."""

    def __init__(
        self,
        ranks: Ranks,
        signal: Callable[[], ControlSignal],
        batch_size: int,
        changes: Callable[[], Sequence[Change]] = tuple,
    ) -> None:
        """`signal`: returns the control signal of this rank; called before each batch. All ranks pass the same
        `batch_size`. `changes`: returns all known changes of the running job; only those known to rank 0 count."""
        self.ranks = ranks
        self.signal = signal
        self._changes = changes
        self._batch_size = batch_size

    def agree(self, item: Batch | PhaseEnd | None, save: bool = False, written: bool = False) -> Agreement:
        """Return what all ranks do next. All ranks together.

        `item`: what this rank has ready. `save`, `written`: as in `Agreement`; only the values of rank 0 count.
        """
        own: list[int] = []
        changes = len(self._changes())
        rank_zero = [number if self.ranks.is_rank_zero else 0 for number in (int(save), int(written), changes)]
        # In NumPy: each torch operation releases the interpreter's lock, and must wait to get it back.
        numbers = np.zeros(_FIXED + self._batch_size, np.int64)
        numbers[:5] = int(self.signal()), *rank_zero, int(item is None)
        if isinstance(item, Batch) and item.input is not None:
            own = [clip.clip.index - item.begin for clip in item.clips]
            numbers[5:8] = item.input.shape
            numbers[_FIXED:][own] = 1
        # Synchronisation point: the maximum decides, so one rank that is to leave, or is not ready, decides for all.
        self.ranks.max(torch.from_numpy(numbers))
        present = numbers[_FIXED:].nonzero()[0]
        return Agreement(
            signal=ControlSignal(int(numbers[0])),
            save=bool(numbers[1]),
            written=bool(numbers[2]),
            changes=int(numbers[3]),
            ready=not numbers[4],
            shape=ClipShape(int(numbers[5]), int(numbers[6]), bool(numbers[7])),
            share=Share(len(present), tuple(np.searchsorted(present, own).tolist())),
        )

    def changes(self) -> list[Change]:
        """Return the changes of the job that rank 0 knows. All ranks together."""
        document = b""
        if self.ranks.is_rank_zero:
            document = Control(changes=self._changes()).SerializeToString()
        return list(Control.FromString(self.ranks.broadcast(document)).changes)

"""The partners of a rank's clips for mixup and CutMix: clips of the same batch, on any rank.

Row i of a batch of n clips has the partner n - 1 - i. With one rank, that is the batch in reverse. With several, each
rank puts its clips at their rows of the whole batch, with zeros elsewhere, and the sum over the ranks is the batch, bit
by bit. So the bytes of a batch are exchanged once per step, as stored (mostly uint8), in addition to the gradients.
Partners from a rank's own share would cost nothing, but would depend on the number of ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from essp_engine.learning.randomness import Share
from essp_engine.loading.device import sent
from essp_trainer.distributed.ranks import Ranks


def partners(own: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """Return the partner of each of this rank's rows, `(rows, ...)`, with the same shape and type. All ranks together.

    With several ranks, `own` has the same shape and type on all of them, except for the number of rows, which may be 0.
    """
    if ranks.world_size == 1:
        return own.flip(0)
    rows = sent(torch.tensor(share.rows, dtype=torch.int64), own.device)
    whole = own.new_zeros(share.clips, *own.shape[1:])
    whole[rows] = own
    ranks.sum(whole)
    return whole[share.clips - 1 - rows]

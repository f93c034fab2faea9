"""The partners of a rank's clips, for mixup and CutMix: clips of the same batch, which may lie on any rank.

Row i of a batch of n clips has the partner n - 1 - i. On one rank that is the batch in reverse. On several, each puts
its clips where they belong in the whole batch, zeros elsewhere, and the sum over the ranks is the batch, to the bit. So
the bytes of a batch travel once a step, as they are stored (mostly uint8), beside those of the gradients. Partners from
a rank's own part would cost nothing, and be others for another number of ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from essp_engine.learning.randomness import Share
from essp_engine.loading.device import sent
from essp_trainer.distributed.ranks import Ranks


def partners(own: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """The partner of each of this rank's rows: `(rows, ...)` -> the same shape and type. All ranks together.

    On several ranks `own` has the same shape and type on all of them, but for the rows, of which there may be none.
    """
    if ranks.world_size == 1:
        return own.flip(0)
    rows = sent(torch.tensor(share.rows, dtype=torch.int64), own.device)
    whole = own.new_zeros(share.clips, *own.shape[1:])
    whole[rows] = own
    ranks.sum(whole)
    return whole[share.clips - 1 - rows]

"""The features of clips: what goes into the last layer of a network while it scores them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from essp_engine.learning.models import AnyClassifier

_MOST = float(np.finfo(np.float16).max)


class HeadInputs:
    """Keeps what the last layer of a classifier reads, batch by batch, until closed."""

    def __init__(self, classifier: AnyClassifier) -> None:
        self._hook = classifier.head.register_forward_pre_hook(self._take)
        self._taken: Tensor | None = None

    def of(self, clips: int) -> NDArray[np.float16]:
        """`(clips, D)`, as `means`, in half precision: the largest numbers that it has stand for larger ones."""
        kept: NDArray[np.float16] = self.means(clips).clamp(-_MOST, _MOST).to(torch.float16).cpu().numpy()
        return kept

    def means(self, clips: int) -> Tensor:
        """`(clips, D)` float32, of the batch of so many clips that was scored last: means over what of a clip was
        scored by itself, such as frames and views, and over places, if the last layer is a convolution."""
        if self._taken is None:
            raise ValueError("nothing has been scored since the last call")
        taken, self._taken = self._taken, None
        rows = taken.reshape(clips, -1, *taken.shape[1:]).float()
        return rows.mean(dim=(1, *range(3, rows.ndim)))

    def close(self) -> None:
        """Take nothing any more. Idempotent."""
        self._hook.remove()

    def _take(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._taken = inputs[0].detach()

"""The features of clips: the input of a network's last layer while it scores them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from essp_engine.learning.models import AnyClassifier

_MOST = float(np.finfo(np.float16).max)


class HeadInputs:
    """Keeps the input of a classifier's last layer, batch by batch, until closed."""

    def __init__(self, classifier: AnyClassifier) -> None:
        self._hook = classifier.head.register_forward_pre_hook(self._take)
        self._taken: Tensor | None = None

    def of(self, clips: int) -> NDArray[np.float16]:
        """`(clips, D)`, as `means`, in half precision, clamped to its range."""
        kept: NDArray[np.float16] = self.means(clips).clamp(-_MOST, _MOST).to(torch.float16).cpu().numpy()
        return kept

    def means(self, clips: int) -> Tensor:
        """`(clips, D)` float32, for the last batch scored, which had this many clips: means over the separately scored
        parts of a clip, such as frames and views, and over positions if the last layer is a convolution."""
        if self._taken is None:
            raise ValueError("nothing has been scored since the last call")
        taken, self._taken = self._taken, None
        rows = taken.reshape(clips, -1, *taken.shape[1:]).float()
        return rows.mean(dim=(1, *range(3, rows.ndim)))

    def close(self) -> None:
        """Stop recording. Idempotent."""
        self._hook.remove()

    def _take(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._taken = inputs[0].detach()

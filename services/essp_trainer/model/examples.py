"""What a model learns from in one step: this rank's clips and their classes, or blends of clips and of classes.

Targets are class ids `(B,)`, or for independent labels `(B, K)` floats that are 1 for each label.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from essp_engine.learning.mixing import Blend


class Examples:
    """Clips without blending."""

    def __init__(self, clips_BTHWC: Tensor, targets: Tensor) -> None:  # noqa: N803
        self._clips = clips_BTHWC
        self._targets = targets

    def __len__(self) -> int:
        return len(self._clips)

    def seen(self, rows: slice) -> Tensor:
        """Return the model's input for these rows, `(B, T, H, W, C)`."""
        return self._clips[rows]

    def loss(self, loss_of: Callable[[Tensor], Tensor], rows: slice) -> Tensor:
        """Return the sum of the losses of these rows. `loss_of`: returns the loss for targets."""
        return loss_of(self._targets[rows])

    def right(self, best: Tensor, rows: slice) -> Tensor:
        """Return how many of these rows have an answer `(B,)`, a class or a label, that counts as correct."""
        answers = self._answers[rows]
        found = best == answers if answers.ndim == 1 else answers.gather(1, best[:, None]) > 0.5
        return found.sum()

    @property
    def _answers(self) -> Tensor:
        """The targets that count as correct."""
        return self._targets


class Blended(Examples):
    """Clips blended with others of their batch."""

    def __init__(
        self,
        blend: Blend,
        normalised: Callable[[Tensor], Tensor],
        clips_BTHWC: Tensor,  # noqa: N803
        targets: Tensor,
        partners_BTHWC: Tensor,  # noqa: N803
        partner_targets: Tensor,
    ) -> None:
        """`normalised`: converts stored clips to floats that may be added."""
        super().__init__(clips_BTHWC, targets)
        self._blend = blend
        self._normalised = normalised
        self._partners = partners_BTHWC
        self._partner_targets = partner_targets

    def seen(self, rows: slice) -> Tensor:
        return self._blend.blended(self._normalised(self._clips[rows]), self._normalised(self._partners[rows]))

    def loss(self, loss_of: Callable[[Tensor], Tensor], rows: slice) -> Tensor:
        return self._blend.loss(loss_of, self._targets[rows], self._partner_targets[rows])

    @property
    def _answers(self) -> Tensor:
        return self._blend.dominant(self._targets, self._partner_targets)

"""Batches, one after the other: `load.DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from essp.api.arguments import whole_number
from essp.api.epochs import Batch
from essp.oneaccess.store import Cifar10


class DataLoader:
    """Batches of a store that is initialized, for so many epochs."""

    def __init__(self, data_store: Cifar10, epochs: int = 1) -> None:
        """Raises `NotFound` if the store has not been initialized."""
        epochs = whole_number("epochs", epochs, 1)
        self._as_they_are = not data_store.transforms
        self._records = data_store.records()
        self.num_batches = epochs * len(self._records)
        """How often `get_next_batch` has one: as many as there are in all epochs."""
        self._left = self.num_batches
        self._epoch: Iterator[Batch] = iter(())

    def get_next_batch(self) -> tuple[Tensor, Tensor]:
        """Images `(B, 3, 32, 32)` uint8, RGB, or what `transform` makes of them; labels `(B,)` int64.

        The last batch of an epoch may be smaller. If damaged images make an epoch shorter, the next one follows, so
        that there are `num_batches` in any case. Raises `StopIteration` after the last one.
        """
        if not self._left:
            self.close()
            raise StopIteration(f"all {self.num_batches} batches were taken")
        batch = next(self._epoch, None)
        while batch is None:
            self._epoch = iter(self._records)
            batch = next(self._epoch, None)
        self._left -= 1
        images = batch.frames[:, 0].permute(0, 3, 1, 2).contiguous() if self._as_they_are else batch.frames
        return images, batch.labels

    def close(self) -> None:
        """End the threads that read ahead. Idempotent; leaving the loader alone does the same."""
        self._records.close()

"""Loads batches one after another: `load.DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from essp.api.arguments import whole_number
from essp.api.epochs import Batch
from essp.oneaccess.store import Store


class DataLoader:
    """Batches of an initialized store, for a number of epochs."""

    def __init__(self, data_store: Store, epochs: int = 1) -> None:
        """Raises `NotFound` if the store has not been initialized."""
        epochs = whole_number("epochs", epochs, 1)
        self._as_they_are = not data_store.transforms
        self._records = data_store.records()
        self.num_batches = epochs * len(self._records)
        """Total number of batches that `get_next_batch` returns, over all epochs."""
        self._left = self.num_batches
        self._epoch: Iterator[Batch] = iter(())

    def get_next_batch(self) -> tuple[Tensor, Tensor]:
        """Images `(B, 3, side, side)` uint8, RGB, or the results of `transform`; labels `(B,)` int64.

        The last batch of an epoch may be smaller. If damaged images shorten an epoch, the next one begins earlier, so
        that there are always `num_batches`. Raises `StopIteration` after the last one.
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
        """End the threads that read ahead. Idempotent. Dropping all references to the loader has the same effect."""
        self._records.close()

"""Records in memory, by their place."""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from essp.records.images import Image, image_of
from essp_common.records.reader import RecordReader

Places = NDArray[np.int64]


class Held(Protocol):
    """Some or all records of a data set. One thread fills it, another one takes from it."""

    def have(self, places: Places) -> NDArray[np.bool_]:
        """Read the records that are not in memory yet; returns which of them are good. Raises as the store does."""

    def image(self, place: int) -> Image:
        """`(H, W, C)` of a record in memory. Raises `BadFrames`."""


class RawImages:
    """Raw images of one size, in one array."""

    def __init__(self, reader: RecordReader, shape: tuple[int, int, int], places: Places | None = None) -> None:
        """`places`: the only records that will be asked for, ascending; default: all."""
        self._reader = reader
        self._places = places
        count = len(reader) if places is None else len(places)
        self._images = np.empty((count, *shape), np.uint8)
        self._rows = self._images.reshape(count, prod(shape))
        self._read = np.zeros(count, np.bool_)
        self._good = np.zeros(count, np.bool_)

    def have(self, places: Places) -> NDArray[np.bool_]:
        """See `Held`."""
        rows = self._row(places)
        read = self._read[rows]
        if not read.all():
            missing = distinct(rows[~read])
            wanted = missing if self._places is None else self._places[missing]
            self._good[missing] = self._reader.read_into(wanted, self._rows, missing)
            self._read[missing] = True
        return self._good[rows]

    def image(self, place: int) -> Image:
        """See `Held`."""
        row: Image = self._images[int(self._row(np.array([place]))[0])]
        return row

    def take(self, places: Places) -> NDArray[np.uint8]:
        """`(B, H, W, C)`: a batch, copied."""
        return self._images.take(self._row(places), axis=0)

    def _row(self, places: Places) -> Places:
        return places if self._places is None else np.searchsorted(self._places, places)


class Files:
    """Image files, or raw images of any size."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self._data: dict[int, bytes | None] = {}
        """Place -> its bytes; None if they are damaged."""

    def have(self, places: Places) -> NDArray[np.bool_]:
        """See `Held`."""
        missing = distinct(np.array([place for place in places.tolist() if place not in self._data], np.int64))
        if len(missing):
            fresh: dict[int, bytes | None] = dict.fromkeys(missing.tolist())
            for some, buffers in self._reader.read(missing):
                # Copy, because a buffer would keep alive everything that was read with it.
                fresh.update(zip(some.tolist(), map(bytes, buffers), strict=True))
            self._data.update(fresh)
        return np.array([self._data[place] is not None for place in places.tolist()], np.bool_)

    def image(self, place: int) -> Image:
        """See `Held`."""
        data = self._data[place]
        assert data is not None
        entry = self._reader.table[place]
        return image_of(
            data, int(entry["encoding"]), (int(entry["height"]), int(entry["width"]), int(entry["channels"]))
        )


def distinct(places: Places) -> Places:
    """The distinct places, ascending. Like `numpy.unique`, which takes 50 ms to import modules on its first call."""
    ascending = np.sort(places)
    return ascending[np.diff(ascending, prepend=-1) > 0]

"""The records that a child reads: byte ranges of record files, checked by CRC and decoded as images.

The seeds contain the location of each record, so no table is read. The records of a work unit are announced together:
records that are close together come with one request, from a store or from the decoder's block cache. Files never
change, so the most recently used ones stay open.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import BadVideo, NotFound
from essp_common.objects.ranged import SharedBlocks, expect, forget, share
from essp_common.pb.v1.messages_pb2 import Resize, Seed, StoredRecord, Video
from essp_common.wiring import Stores
from essp_engine.video.colour import Colour
from essp_engine.video.container import Limits
from essp_engine.video.images import ImageDecoder
from essp_engine.video.selection import Tally


class OpenRecords:
    """At most `capacity` open files of records."""

    def __init__(self, stores: Stores, limits: Limits, capacity: int, shared: SharedBlocks | None = None) -> None:
        """`shared`: an additional cache for data read in ranges."""
        self._stores = stores
        self._limits = limits
        self._capacity = capacity
        self._shared = shared
        self._images = ImageDecoder(limits.pixels)
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()
        self.tally = Tally()
        self.colours: list[Colour | None] = []
        """For each seed of the last `read`: the colours of its frames; None for RGB."""

    def read(
        self,
        file: Video,
        seeds: Sequence[Seed],
        resize: Resize,
        targets: Sequence[NDArray[np.uint8]],
        *,
        strict: bool = True,
    ) -> list[BadVideo | None]:
        """Fill the target of each seed, `(1, ...)`. Returns for each seed None or its error.

        Raises `BadVideo` (`vanished`) for the file, and `Unavailable`.
        """
        opened = self._opened(file.uri)
        outcomes: list[BadVideo | None] = [None] * len(seeds)
        self.colours = [None] * len(seeds)
        order = sorted(range(len(seeds)), key=lambda place: seeds[place].record.offset)
        spans = [(seeds[place].record.offset, seeds[place].record.length) for place in order]
        expect(opened, [(offset, offset + length) for offset, length in spans])
        for place in order:
            try:
                record = seeds[place].record
                self.colours[place] = self._write(opened, record, resize, targets[place][0], strict)
                self.tally.wanted += 1
                self.tally.decoded += 1
            except BadVideo as error:
                outcomes[place] = error
        return outcomes

    def drop(self, file: Video, *, damaged: bool = False) -> None:
        """Close a file, if it is open. `damaged`: also drop its data from the shared cache."""
        if (opened := self._open.pop(file.uri, None)) is not None:
            if damaged:
                forget(opened)
            opened.close()

    def _write(
        self, file: BinaryIO, record: StoredRecord, resize: Resize, target: NDArray[np.uint8], strict: bool
    ) -> Colour | None:
        if record.length > self._limits.size_bytes:
            raise BadVideo(f"the record has {record.length} bytes, the limit is {self._limits.size_bytes}", "limit")
        file.seek(record.offset)
        data = file.read(record.length)
        if len(data) != record.length:
            raise BadVideo(
                f"the file of records ends before the record's last byte ({len(data)} are there)", "truncated"
            )
        if zlib.crc32(data) != record.crc:
            raise BadVideo("the record's bytes are damaged: their CRC differs from the table")
        shape = (record.height, record.width, record.channels) if record.channels else None
        return self._images.write(data, shape, resize, target, strict=strict)

    def _opened(self, uri: str) -> BinaryIO:
        if uri in self._open:
            self._open.move_to_end(uri)
            return self._open[uri]
        store, key = self._stores.resolve(uri)
        try:
            path = store.local_path(key)
            opened: BinaryIO = store.open(key) if path is None else open(path, "rb")  # noqa: SIM115  stays open
        except (NotFound, FileNotFoundError) as error:
            raise BadVideo(f"{uri} is not there", "vanished") from error
        if self._shared is not None:
            share(opened, self._shared)
        self._open[uri] = opened
        while len(self._open) > self._capacity:
            self._open.popitem(last=False)[1].close()
        return opened

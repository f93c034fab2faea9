"""Pictures to be classified: their files become records, which a predict job reads.

A picture is a clip of one frame, so only a model of such clips can say something of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from essp.records.sources import IMAGE_SUFFIXES
from essp_common.artifacts.fused_model import FusedModel
from essp_common.catalog.rows import VideoRow
from essp_common.errors import BadVideo, PermanentError
from essp_common.records.chunk import Encoding, Record
from essp_common.records.rows import record_id
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from essp_common.wiring import Stores

SPLIT = "train"
"""What a predict job calls the records that it reads."""


def suffixes_for(model: FusedModel) -> frozenset[str]:
    """Of the files that are pictures to this model."""
    return IMAGE_SUFFIXES if model.clip.frames == 1 else frozenset()


def write_records(
    pictures: Iterable[VideoRow], data_set: DataSet, stores: Stores
) -> tuple[dict[str, VideoRow], list[tuple[VideoRow, str]]]:
    """Write the files as they are. Returns the id of each record with its picture, and pictures with why they cannot be
    used; whether their bytes are an image is seen when they are read. If none can be used, nothing is written.
    """
    written: dict[str, VideoRow] = {}
    refused: list[tuple[VideoRow, str]] = []

    def read() -> Iterator[Record]:
        for row in pictures:
            try:
                if not row.size_bytes:
                    raise BadVideo("the file is empty", "empty")
                store, key = stores.resolve(row.uri, video=True)
                record = Record(store.get(key), -1, Encoding.ENCODED)
            except PermanentError as error:
                refused.append((row, f"{error.kind}: {error}"))
            else:
                written[record_id(SPLIT, len(written))] = row
                yield record

    records = read()
    if (first := next(records, None)) is not None:
        with Writer(data_set, ()) as writer:
            for record in chain([first], records):
                writer.add(record)
    return written, refused

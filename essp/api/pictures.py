"""Pictures to classify: their files become records, which a predict job reads.

A picture is a clip of one frame, so only a model that was trained on such clips can classify it.
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
"""The split of a predict job's records."""


def suffixes_for(model: FusedModel) -> frozenset[str]:
    """Suffixes of the files that this model reads as pictures; empty if it reads only videos."""
    return IMAGE_SUFFIXES if model.clip.frames == 1 else frozenset()


def write_records(
    pictures: Iterable[VideoRow], data_set: DataSet, stores: Stores
) -> tuple[dict[str, VideoRow], list[tuple[VideoRow, str]]]:
    """Write the files unchanged, each as a record. Nothing is written if no file can be used.

    Returns record id -> picture, and the pictures that cannot be used, each with the reason. Whether the bytes are an
    image is checked when a record is read.
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

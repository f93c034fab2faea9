"""Small data sets of records that can be told apart: all pixels of an image are its number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import essp
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer

RECORDS, SIDE = 50, 4
RECORD_BYTES = SIDE * SIDE * 3


def image(number: int, side: int = SIDE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All pixels are its number."""
    return np.full((side, side, 3), number, np.uint8)


def build(path: Path, records: Sequence[Record], append: bool = False) -> Path:
    data_set = DataSet(DirectoryStore.from_url(path.as_uri()))
    with Writer(data_set, ("a", "b"), file_bytes=900, append=append) as writer:
        for record in records:
            writer.add(record)
    return path


def taken(batches: Iterator[essp.Batch] | essp.Records) -> list[int]:
    """The records that come, in order; each is checked against what was written."""
    found: list[int] = []
    for batch in batches:
        numbers = batch.meta["record"]
        assert batch.frames.shape[1:] == (1, SIDE, SIDE, 3)
        assert batch.labels.tolist() == [number % 2 for number in numbers]
        assert batch.meta["class_name"] == ["ab"[number % 2] for number in numbers]
        means = batch.frames.double().mean(dim=(1, 2, 3, 4))
        assert torch.allclose(means, torch.tensor(numbers, dtype=torch.double), atol=2.5)  # JPEG
        found += numbers
    return found


MEMORIES = ["1GiB", RECORD_BYTES * 14, 1]


def damage(path: Path, numbers: Sequence[int]) -> None:
    """Change a byte of each of these records."""
    store = DirectoryStore.from_url(path.as_uri())
    reader = RecordReader(DataSet(store))
    for number in numbers:
        [file] = [file for file in reader.version.files if file.first_key <= number < file.first_key + file.records]
        data = bytearray(store.get(file.key))
        data[int(reader.table["offset"][number]) + 1] ^= 255
        store.put(file.key, bytes(data))

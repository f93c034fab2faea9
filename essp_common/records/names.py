"""What people call records: the files that they were made from, named beside each file of records.

    <folder>/records/<name>.names        a JSON list: a name for each record of records/<name>.records, in their order

They are for people alone: a data set without them, or with damaged ones, is whole. Reports and predictions name records
by them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.records.versions import DataSet, RecordFile, Version
from essp_common.wiring import Stores

_FILES = 64
"""Whose names are in memory together."""


def names_bytes(names: Sequence[str]) -> bytes:
    """As they are written."""
    return json.dumps(names, ensure_ascii=False).encode()


class RecordNames:
    """The names of the records of one version. Each file of them is read when the first of its names is asked for."""

    def __init__(self, data_set: DataSet, version: Version) -> None:
        self._data_set = data_set
        self._version = version
        self._of_file = lru_cache(_FILES)(self._read)

    def __getitem__(self, key: int) -> str:
        """Of the record with this key; empty: it has none, or none that can be read."""
        for file in self._version.files:
            if file.first_key <= key < file.first_key + file.records:
                return self._of_file(file)[key - file.first_key]
        return ""

    def _read(self, file: RecordFile) -> Sequence[str]:
        nothing = [""] * file.records
        try:
            found = json.loads(self._data_set.store.get(file.names_key))
        except (EsspError, ValueError):
            return nothing
        whole = isinstance(found, list) and len(found) == file.records and all(isinstance(one, str) for one in found)
        return found if whole else nothing


def names_by_split(spec: JobSpec, stores: Stores) -> Mapping[str, RecordNames]:
    """The names of the records of a job; none of a job of videos, and none of a data set that cannot be read."""
    found: dict[str, RecordNames] = {}
    for split, uri in spec.data.record_sets.items():
        with suppress(EsspError):
            data_set = DataSet(stores.under(uri))
            found[split] = RecordNames(data_set, data_set.version(spec.data.versions.get(split))[1])
    return found


def name_of(record: str, names: Mapping[str, RecordNames]) -> str:
    """What people call the record with this id, `train/000000000042`; empty: that is not known, or it is a video."""
    split, _, key = record.partition("/")
    return names[split][int(key)] if split in names else ""

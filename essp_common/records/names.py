"""Display names of records: the files that they were made from, stored next to each file of records.

    <folder>/records/<name>.names        a JSON list: a name for each record of records/<name>.records, in order

They are only for display: a data set with missing or damaged names is still intact. Reports and predictions use them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.records.versions import DataSet, RecordFile, Version
from essp_common.wiring import Stores

_FILES = 64
"""The number of files whose names are kept in memory."""


def names_bytes(names: Sequence[str]) -> bytes:
    """Names in their stored form."""
    return json.dumps(names, ensure_ascii=False).encode()


class RecordNames:
    """The names of the records of one version. Each file of names is read on first access."""

    def __init__(self, data_set: DataSet, version: Version) -> None:
        self._data_set = data_set
        self._files = version.files
        self._first_keys = [file.first_key for file in version.files]
        self._of_file = lru_cache(_FILES)(self._read)

    def __getitem__(self, key: int) -> str:
        """The name of the record with this key; empty if it has none or it cannot be read."""
        number = bisect_right(self._first_keys, key) - 1
        if number < 0 or key - self._first_keys[number] >= self._files[number].records:
            return ""
        return self._of_file(self._files[number])[key - self._first_keys[number]]

    def _read(self, file: RecordFile) -> Sequence[str]:
        nothing = [""] * file.records
        try:
            found = json.loads(self._data_set.store.get(file.names_key))
        except (EsspError, ValueError, RecursionError):
            return nothing
        whole = isinstance(found, list) and len(found) == file.records and all(isinstance(one, str) for one in found)
        return found if whole else nothing


def names_by_split(spec: JobSpec, stores: Stores) -> Mapping[str, RecordNames]:
    """The names of the records of a job; empty for a job of videos, and without data sets that cannot be read."""
    found: dict[str, RecordNames] = {}
    for split, uri in spec.data.record_sets.items():
        with suppress(EsspError):
            data_set = DataSet(stores.under(uri))
            found[split] = RecordNames(data_set, data_set.version(spec.data.versions.get(split))[1])
    return found


def name_of(record: str, names: Mapping[str, RecordNames]) -> str:
    """The display name of the record with this id, such as `train/000000000042`; empty if it is unknown or a video."""
    split, _, key = record.partition("/")
    return names[split][int(key)] if split in names else ""

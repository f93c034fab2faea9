"""Versions of data sets of records as a catalog: each record is a video of one frame.

A job plans, splits and accounts for records as for videos. `open_data` returns the catalog of a job for either. Its
rows are columns, with about 100 bytes per record, and two columns more than for videos:

    record   the entries of the tables (`chunk.ENTRY`)
    file     the index of each record's file in `RecordUris.files`; records of one file may be read together

A record's id consists of its split and its key, `train/000000000042`. Ids ascend in the order of records in their
files, so records with close rows are close together.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.columns import Blobs, Column, Lists, Texts, Words, narrow
from essp_common.catalog.divisions import columns_of, divided
from essp_common.catalog.events import check_one_view, of_views
from essp_common.catalog.file import read_catalog
from essp_common.catalog.schema import OF_EVENTS, TIMED
from essp_common.catalog.source_columns import stored_in
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.records.chunk import ENTRY, HEADER_BYTES, Encoding, read_table, table_bytes
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores

FIELDS = {"train": "data.records", "validation": "data.records_validation", "test": "data.records_test"}
"""Split -> the field of a job that names its data set."""
UNLABELLED = "it has no label"
_DIGITS = 12
"""Digits of a key in an id, so that ids sort like keys."""


def open_data(spec: JobSpec, stores: Stores, columns: Collection[str] | None = None) -> Catalog:
    """The catalog of a job with its division applied, from its videos or its records.

    `columns`: as for `read_catalog`; records have all of them. Raises as `read_catalog`, `divided` and `of_records`.
    """
    if spec.data.records:
        return of_records(spec, stores)
    timed = OF_EVENTS if spec.clip.views else TIMED if spec.clip.by_time else ()
    moving = ("codec",) if spec.clip.motion else ()
    mixed = stored_in(spec.sampling.mix.column) if spec.sampling.mix is not None else ()
    wanted = None if columns is None else (*columns, "view", *timed, *moving, *columns_of(spec.data), *mixed)
    catalog = divided(read_catalog(*stores.resolve(spec.data.catalog), wanted), spec.data)
    if spec.clip.views:
        return of_views(catalog, tuple(spec.clip.views))
    if not spec.predicts:
        check_one_view(catalog)
    return catalog


def of_records(spec: JobSpec, stores: Stores) -> Catalog:
    """The records of a job; only those with a label are trained on.

    Raises `ConfigError`, which names the field, for a missing or damaged data set or version.
    """
    sets = [_Set(split, _reader(spec, split, uri, stores)) for split, uri in spec.data.record_sets.items()]
    sets.sort(key=lambda found: found.split)  # in the order of their ids
    return _catalog(sets, labelled=bool(spec.trainers), source=spec.data.records)


def record_at(uri: str, stores: Stores) -> tuple[bytes, tuple[int, int, int] | None]:
    """The bytes of the record at this URI, and `(H, W, C)` for a raw image; None for an image file.

    Raises `NotFound`, and `PermanentError` for damage.
    """
    file, _, key = uri.rpartition("#")
    store, name = stores.resolve(file)
    head = store.get(name, 0, HEADER_BYTES)
    table = read_table(head, store.get(name, HEADER_BYTES, table_bytes(head)), store.head(name).size_bytes)
    found = table[table["key"] == int(key)]
    if not len(found):
        raise NotFound(f"{file} has no record {key}")
    _, offset, length, crc, _, height, width, channels, encoding, _ = found[0].item()
    data = store.get(name, offset, length)
    if zlib.crc32(data) != crc:
        raise PermanentError(f"{uri}: its bytes are damaged")
    return data, (height, width, channels) if encoding == Encoding.RAW else None


def record_id(split: str, key: int) -> str:
    """The id of a record in the catalog of a job."""
    return f"{split}/{key:0{_DIGITS}}"


class RecordUris(Texts):
    """The URIs of records: the file, and the key in the data set. All are distinct, and computed on access."""

    def __init__(self, files: Sequence[str], file: NDArray[np.int32], keys: NDArray[np.uint64]) -> None:
        self.files = files
        self._file = file
        self._keys = keys

    def __len__(self) -> int:
        return len(self._file)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordUris, (self.files, self._file, self._keys)

    def value(self, place: int) -> str:
        return f"{self.files[self._file[place]]}#{self._keys[place]}"

    def encoded(self, place: int) -> bytes:
        return self.value(place).encode()

    def values(self, places: NDArray[Any]) -> list[str]:
        return [self.value(place) for place in places.tolist()]

    def each(self, places: NDArray[Any]) -> Iterator[memoryview | bytes]:
        return (self.encoded(place) for place in places.tolist())

    @property
    def lengths(self) -> NDArray[Any]:
        digits = np.char.str_len(self._keys.astype(np.str_))
        return np.array([len(file.encode()) + 1 for file in self.files], np.int64)[self._file] + digits

    def alike(self, places: NDArray[Any]) -> NDArray[Any]:
        return np.arange(len(places))

    def taken(self, places: NDArray[Any]) -> Blobs:
        return RecordUris(self.files, self._file[places], self._keys[places])

    def arrow(self) -> Any:
        return pa.array(self.values(np.arange(len(self))), pa.string())


class _Set:
    """One data set of a job."""

    def __init__(self, split: str, reader: RecordReader) -> None:
        self.split = split
        self.table = reader.table
        self.file = reader.file_of(np.arange(len(reader)))
        self.files = [reader.store.uri(file.key) for file in reader.version.files]
        self.classes = reader.classes

    @property
    def ids(self) -> NDArray[np.uint8]:
        """`(n, characters)`"""
        keys = self.table["key"].astype(np.int64)
        start = np.frombuffer(f"{self.split}/".encode(), np.uint8)
        found = np.empty((len(keys), len(start) + _DIGITS), np.uint8)
        found[:, : len(start)] = start
        for digit in range(_DIGITS):
            keys, found[:, -1 - digit] = keys // 10, keys % 10 + ord("0")
        return found


def _reader(spec: JobSpec, split: Any, uri: str, stores: Stores) -> RecordReader:
    field = FIELDS[split]
    try:
        found = RecordReader(DataSet(stores.under(uri)), spec.data.versions.get(split))
    except (ConfigError, NotFound, PermanentError) as error:
        raise ConfigError(str(error), field=field, code="not_found") from error
    if found.damaged:  # a resumed job must find the same records
        what, why = next(iter(found.damaged.items()))
        more = f", and {len(found.damaged) - 1} more files" if len(found.damaged) > 1 else ""
        raise ConfigError(
            f"{what} of {uri}: {why}{more}; put the file back as it was, or name an older version without it "
            f"(data.versions.{split}); `essp records verify` says all that is damaged",
            field=field,
            code="unreadable",
        )
    if not len(found):
        raise ConfigError(f"version {found.number} of {uri} has no records", field=field, code="empty")
    return found


def _catalog(sets: Sequence[_Set], labelled: bool, source: str) -> Catalog:
    """`labelled`: records without a label are unusable."""
    table = np.concatenate([found.table for found in sets]) if sets else np.empty(0, ENTRY)
    count = len(table)
    files = [uri for found in sets for uri in found.files]
    begins = np.cumsum([0, *(len(found.files) for found in sets)])
    file = np.concatenate([found.file + begin for found, begin in zip(sets, begins.tolist(), strict=False)])
    classes = [name for found in sets for name in (*found.classes, "")]
    shifts = np.cumsum([0, *(len(found.classes) + 1 for found in sets)])
    codes = np.concatenate(
        [
            np.where(found.table["label"] < 0, len(found.classes), found.table["label"]) + shift
            for found, shift in zip(sets, shifts.tolist(), strict=False)
        ]
    )
    splits = np.repeat(np.arange(len(sets), dtype=np.int8), [len(found.table) for found in sets])
    missing = np.zeros(count, np.int8) - 1
    errors = np.where(table["label"] < 0, np.int8(0), missing) if labelled else missing
    encodings = np.where(table["encoding"] == Encoding.RAW, np.int8(1), np.int8(0))
    own: dict[str, Column] = {
        "id": _texts(sets),
        "uri": RecordUris(files, file, table["key"].copy()),
        "class_name": _words(codes, classes),
        "split": _words(splits, [found.split for found in sets]),
        "size_bytes": table["length"].astype(np.int64),
        "codec": _words(encodings, ["image", "raw"]),
        "width": table["width"].astype(np.int32),
        "height": table["height"].astype(np.int32),
        "error": _words(errors, [UNLABELLED]),
        "record": table,
        "file": file,
    }
    return Catalog.of_columns(_alike(count) | own, source)


def _alike(count: int) -> dict[str, Column]:
    """The columns that are equal for all records: each is one frame, without time and keyframes."""
    empty = _words(np.zeros(count, np.int8), [""])
    zeros, ones = np.zeros(count, np.int8), np.ones(count, np.int8)
    none = Lists(np.zeros(count + 1, np.int32), np.empty(0, np.int8))
    texts, blobs = (kind(b"", np.zeros(count + 1, np.int32)) for kind in (Texts, Blobs))
    return {
        "etag": texts,
        "container": _words(zeros, ["records"]),
        "pixel_format": empty,
        "rotation": zeros,
        "fps": np.zeros(count),
        "duration_s": np.zeros(count),
        "start_s": np.zeros(count),
        "timestamps": blobs,
        "time_base_num": zeros,
        "time_base_den": ones,
        "frame_count": ones,
        "first_frame": zeros,
        "last_frame": zeros,
        "seekable": np.zeros(count, np.bool_),
        "lookahead": zeros,
        "keyframe_pts": none,
        "keyframe_frame": none,
        "keyframe_offset": none,
        "group": empty,
        "event": texts,
        "view": empty,
        "origin_s": np.zeros(count),
        "extra": texts,
        "targets": blobs,
        "notes": empty,
        "unproven": empty,
    }


def _texts(sets: Sequence[_Set]) -> Texts:
    data, edges, end = [], [np.zeros(1, np.int64)], 0
    for found in sets:
        ids = found.ids
        edges.append(end + np.arange(1, len(ids) + 1, dtype=np.int64) * ids.shape[1])
        end += ids.size
        data.append(ids.tobytes())
    whole = np.concatenate(edges)
    return Texts(b"".join(data), whole if end >= 2**31 else whole.astype(np.int32))


def _words(codes: NDArray[Any], words: Sequence[str]) -> Words:
    """A column of words from a list that may contain repetitions."""
    once = {word: place for place, word in enumerate(dict.fromkeys(words))}
    places = np.array([*(once[word] for word in words), -1])
    texts = [word.encode() for word in once]
    edges = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    return Words(narrow(places[codes]), Texts(b"".join(texts), edges))

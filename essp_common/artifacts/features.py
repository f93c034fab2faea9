"""The vectors of an extract job, as it writes them and as programs read them.

    features/<source>/part-<number>.parquet   a row for each vector (`format: parquet`)
    features/<source>/<video>.npy             (T, D), a file for each video (`format: npy`)
    features/<source>-videos.parquet          a row for each video of the catalog, in its order
    features/manifest.json                    what there is; written last, so features with a manifest are complete

A source is a network of a fused model, by the name of its trainer, or a stream. Rows are in the order of the catalog's
videos, and those of a video in time order. The columns of a part: `video_id` (joins the catalog's `id`), `clip` (the
number of the clip in its video, from 0), `first_frame` and `last_frame` (inclusive, as counted in the file), `start_s`
and `end_s` (seconds of the file; null for pictures), `vector` (fixed-size list of float32 or float16). If vectors are
pooled, a row is a video: `clip` is 0, and the frames are the first and last of all its clips.

The table of videos has `video_id`, `class_name`, `split`, `vectors` (how many there are of it), `clips` (how many they
were computed from), `error` (why some or all clips are missing; null: none are) and `file` (of NumPy, if there is one).
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from essp_common.artifacts import layout
from essp_common.errors import NotFound, PermanentError
from essp_common.objects import tables
from essp_common.objects.keys import is_key
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems

MANIFEST = f"{layout.FEATURES}manifest.json"
_PLACES = pa.schema(
    [
        ("video_id", pa.string()),
        ("clip", pa.int32()),
        ("first_frame", pa.int64()),
        ("last_frame", pa.int64()),
        ("start_s", pa.float64()),
        ("end_s", pa.float64()),
    ]
)
VECTOR = "vector"
VIDEOS = pa.schema(
    [
        ("video_id", pa.string()),
        ("class_name", pa.string()),
        ("split", pa.string()),
        ("vectors", pa.int32()),
        ("clips", pa.int32()),
        ("error", pa.string()),
        ("file", pa.string()),
    ]
)
_OPTIONAL = ("start_s", "end_s", "error", "file")
_SUFFIX = re.compile(r"(?<=[^/])\.(?=[0-9]*[A-Za-z])[A-Za-z0-9]{2,5}$")
_LONGEST_PART = 200
"""Bytes of a part of a file name; file systems allow 255."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class FeatureSource(_Section):
    """The vectors of one source."""

    numbers: int
    """The length D of a vector; 0 if there is none."""
    dtype: Literal["float32", "float16"]
    format: Literal["parquet", "npy"]
    pool: Literal["none", "mean", "max"]
    rows: int
    videos: int
    """Videos with a vector."""
    failed: int
    """Videos of the catalog without one."""
    parts: tuple[str, ...] = ()
    """The tables in the folder of the source, in order (`format: parquet`)."""


class FeatureManifest(_Section):
    """What an extract job has written."""

    format: Literal[1] = 1
    job: str
    identity: str
    """A digest of everything that determines the vectors (`PartialScores.identity`)."""
    sources: dict[str, FeatureSource]
    extract: dict[str, Any]
    """The job's `extract`, as are the next three."""
    clip: dict[str, Any]
    sampling: dict[str, Any]
    streams: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Vectors with their places, N of one source, in the order of the output."""

    video_id: tuple[str, ...]
    clip: NDArray[np.int32]
    first_frame: NDArray[np.int64]
    last_frame: NDArray[np.int64]
    start_s: NDArray[np.float64]
    """NaN: unknown."""
    end_s: NDArray[np.float64]
    vectors: NDArray[np.floating[Any]]
    """(N, D)"""

    def __len__(self) -> int:
        return len(self.video_id)

    def table(self) -> pa.Table:
        """As a table of a part."""
        numbers = self.vectors.shape[1]
        values = pa.array(np.ascontiguousarray(self.vectors).reshape(-1))
        columns = [
            pa.array(self.video_id, pa.string()),
            pa.array(self.clip, pa.int32()),
            pa.array(self.first_frame, pa.int64()),
            pa.array(self.last_frame, pa.int64()),
            pa.array(self.start_s, pa.float64(), from_pandas=True),
            pa.array(self.end_s, pa.float64(), from_pandas=True),
            pa.FixedSizeListArray.from_arrays(values, numbers),
        ]
        return pa.table(columns, schema=_PLACES.append(pa.field(VECTOR, pa.list_(values.type, numbers))))


def part_key(source: str, number: int) -> str:
    """The key of a table of vectors."""
    return f"{layout.FEATURES}{source}/part-{number:05d}.parquet"


def array_key(source: str, file: str) -> str:
    """The key of the NumPy file of a video."""
    return f"{layout.FEATURES}{source}/{file}"


def videos_key(source: str) -> str:
    """The key of the table of videos."""
    return f"{layout.FEATURES}{source}-videos.parquet"


def array_bytes(vectors: NDArray[Any]) -> bytes:
    """An array as a NumPy file."""
    sink = io.BytesIO()
    np.save(sink, np.ascontiguousarray(vectors), allow_pickle=False)
    return sink.getvalue()


def file_names(videos: Sequence[str]) -> list[str]:
    """The names of the NumPy files of these videos, below the folder of a source.

    A name is the id, with `.npy` instead of its suffix if no other video has the same name without it. Whatever no
    key can contain is percent-encoded, so no two videos share a file, on any file system.
    """
    whole = [_encoded(video) for video in videos]
    bare = [_SUFFIX.sub("", name) for name in whole]
    seen = Counter(name.lower() for name in bare)
    kept = [name if seen[name.lower()] == 1 else full for name, full in zip(bare, whole, strict=True)]
    seen = Counter(name.lower() for name in kept)
    return [
        f"{name if seen[name.lower()] == 1 else f'{name}%{_digest(video)}'}.npy"
        for name, video in zip(kept, videos, strict=True)
    ]


def _encoded(video: str) -> str:
    return "/".join(map(_encoded_part, video.split("/")))


def _encoded_part(part: str) -> str:
    if part in ("", ".", ".."):
        return "%" + part.replace(".", "%2E").removeprefix("%")
    text = "".join(c if c not in '%\\:*?"<>|' and is_key(c + "_") else f"%{ord(c):02X}" for c in part)
    if len(text.encode()) <= _LONGEST_PART:
        return text
    return f"{text.encode()[: _LONGEST_PART // 2].decode(errors='ignore')}%{_digest(part)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def videos_table(columns: Sequence[Sequence[Any]]) -> pa.Table:
    """The table of videos: a sequence for each column, in the order above."""
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, VIDEOS, strict=True)], schema=VIDEOS
    )


def read_manifest(output: ObjectStore) -> FeatureManifest:
    """The manifest in a job's output. Raises `NotFound`, or `PermanentError` if it is damaged."""
    data = output.get(MANIFEST)
    try:
        return FeatureManifest.model_validate_json(data)
    except ValidationError as error:
        said = problems(error, FeatureManifest)[0]
        raise PermanentError(f"{output.uri(MANIFEST)} is damaged: {said}; run the job again with --fresh") from error


def read_part(output: ObjectStore, source: str, name: str, numbers: int, dtype: str) -> pa.Table:
    """One table of vectors. Raises `NotFound`, or `PermanentError` for an object of another kind."""
    return _read(
        output,
        f"{layout.FEATURES}{source}/{name}",
        _PLACES.append(pa.field(VECTOR, pa.list_(pa.from_numpy_dtype(np.dtype(dtype)), numbers))),
        (*_OPTIONAL, VECTOR),
    )


def read_videos(output: ObjectStore, source: str) -> pa.Table:
    """The table of videos of a source. Raises `NotFound`, or `PermanentError` for an object of another kind."""
    return _read(output, videos_key(source), VIDEOS, _OPTIONAL)


def read_array(output: ObjectStore, source: str, file: str) -> NDArray[Any]:
    """The NumPy file of a video. Raises `NotFound`, or `PermanentError` for an object of another kind."""
    key = array_key(source, file)
    try:
        found: NDArray[Any] = np.load(io.BytesIO(output.get(key)), allow_pickle=False)
    except NotFound:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise PermanentError(
            f"{output.uri(key)} is not a NumPy file: {error}; run the job again with --fresh"
        ) from error
    return found


def _read(output: ObjectStore, key: str, schema: pa.Schema, optional: Collection[str]) -> pa.Table:
    data = output.get(key)
    try:
        return tables.filled(tables.unpacked(data), schema, optional)
    except tables.UNREADABLE as error:
        raise PermanentError(
            f"{output.uri(key)} holds no features: {tables.reason(error)}; run the job again with --fresh"
        ) from error

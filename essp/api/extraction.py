"""Features and embeddings of many videos: what an extract job has written, as arrays (`essp.load_features`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.api.arguments import uri_of
from essp_common.artifacts import features
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.runtime.config import Settings
from essp_common.validation import suggested
from essp_common.wiring import Stores


@dataclass(frozen=True, repr=False)
class Features:
    """The vectors of one source of an extract job: N rows, in the order of the catalog, each video's in time order.

    video_id: (N,) the id of the video in the catalog.
    clip: (N,) number of the clip in its video, from 0. All 0 if the job pools by video.
    first_frame, last_frame: (N,) the frames of the video that the vector is of, both inclusive; -1: unknown, as from
        `--format npy`.
    start_s, end_s: (N,) the same in seconds; NaN: unknown.
    vectors: (N, D) float32 or float16.
    failed: video -> why it has no vector, or why some are missing.

        found = essp.load_features("runs/dino")
        found.vectors.shape, found["talks/1.mp4"].shape   # (N, D), (T, D)
        per_video = found.of(row.id for row in catalog.rows)      # (rows, D), NaN where a video has none
    """

    video_id: NDArray[np.str_]
    clip: NDArray[np.int32]
    first_frame: NDArray[np.int64]
    last_frame: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    vectors: NDArray[np.floating[Any]]
    failed: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.video_id)

    def __repr__(self) -> str:
        size, kind = self.vectors.shape[1], self.vectors.dtype
        return f"<Features: {len(self)} vectors of {size} numbers, of {len(self._rows)} videos, {kind}>"

    def __iter__(self) -> Iterator[str]:
        """The videos with a vector, in order."""
        return iter(self._rows)

    def __contains__(self, video: object) -> bool:
        return video in self._rows

    def __getitem__(self, video: str) -> NDArray[np.floating[Any]]:
        """`(T, D)` vectors of one video, in time order. Raises `KeyError` if it has none."""
        return self.vectors[self._rows[video]]

    def of(self, videos: Sequence[str] | Iterator[str]) -> NDArray[np.floating[Any]]:
        """`(V, D)`: a vector for each of these videos, in this order: the mean of its vectors; NaN if it has none."""
        named = [str(video) for video in videos]
        found = np.full((len(named), self.vectors.shape[1]), np.nan, self.vectors.dtype)
        for row, video in enumerate(named):
            if video in self._rows:
                own = self[video]
                found[row] = own[0] if len(own) == 1 else own.astype(np.float64).mean(axis=0)
        return found

    @cached_property
    def _rows(self) -> dict[str, slice]:
        if not len(self):
            return {}
        begins = np.flatnonzero(np.concatenate([[True], self.video_id[1:] != self.video_id[:-1]]))
        ends = [*begins[1:].tolist(), len(self)]
        return {str(self.video_id[b]): slice(b, e) for b, e in zip(begins.tolist(), ends, strict=True)}


def load_features(folder: str | Path, source: str | None = None) -> Features:
    """Read what a job with `extract` (`essp extract`) has written.

    folder: path or URI of the job's output, or of `features` in it.
    source: the stream or the network whose vectors to read; None: the only one.

        found = essp.load_features("runs/dino")
        index = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)

    All vectors are in memory: for more than that, read `features/SOURCE/*.parquet` table by table. Raises `NotFound` if
    the job has not completed, `ConfigError` for an unknown source, and `PermanentError` for a damaged file.
    """
    output, manifest = _opened(uri_of("folder", folder))
    known = list(manifest.sources)
    if source is None and len(known) > 1:
        raise ConfigError(f"name one of {', '.join(known)}", field="source", code="missing")
    name = source if source is not None else known[0]
    if name not in manifest.sources:
        raise ConfigError(f"no source {name!r}; {suggested(name, known)}", field="source", code="unknown")
    of_source = manifest.sources[name]
    read = _from_arrays if of_source.format == "npy" else _from_tables
    return read(output, name, of_source)


def _opened(folder: str) -> tuple[ObjectStore, features.FeatureManifest]:
    """The output of a job, and its manifest. The folder may also be `features` in the output."""
    stores = Stores(Settings().stores)
    output = stores.under(folder)
    try:
        return output, features.read_manifest(output)
    except NotFound as error:
        inner = folder.rstrip("/")
        if (above := inner.removesuffix("/features")) != inner:
            with suppress(NotFound, ConfigError):
                outer = stores.under(above)
                return outer, features.read_manifest(outer)
        raise NotFound(
            f"{output.uri(features.MANIFEST)} does not exist: no job with `extract` has completed there; run it to its "
            "end first"
        ) from error


def _from_tables(output: ObjectStore, name: str, source: features.FeatureSource) -> Features:
    tables = [features.read_part(output, name, part, source.numbers, source.dtype) for part in source.parts]
    vectors = np.empty((source.rows, source.numbers), source.dtype)
    row = 0
    for table in tables:
        values = table.column(features.VECTOR).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors[row : row + len(table)] = values.reshape(len(table), source.numbers)
        row += len(table)

    def column(name: str, kind: Any) -> NDArray[Any]:
        found = [table.column(name).to_numpy() for table in tables]
        return np.concatenate(found).astype(kind) if found else np.zeros(0, kind)

    return Features(
        video_id=column("video_id", np.str_),
        clip=column("clip", np.int32),
        first_frame=column("first_frame", np.int64),
        last_frame=column("last_frame", np.int64),
        start_s=column("start_s", np.float64),
        end_s=column("end_s", np.float64),
        vectors=vectors,
        failed=_failed(output, name),
    )


def _from_arrays(output: ObjectStore, name: str, source: features.FeatureSource) -> Features:
    """Files of NumPy hold no places; a clip without a vector is a row of NaN there, which is left out here."""
    videos: list[str] = []
    clips: list[int] = []
    arrays: list[NDArray[Any]] = []
    table = features.read_videos(output, name)
    for video, file in zip(table.column("video_id").to_pylist(), table.column("file").to_pylist(), strict=True):
        if file is None:
            continue
        array = np.atleast_2d(features.read_array(output, name, file))
        kept = np.flatnonzero(~np.isnan(array).all(axis=1))
        videos += [video] * len(kept)
        clips += kept.tolist()
        arrays.append(array[kept])
    unknown, nowhere = np.full(len(videos), -1, np.int64), np.full(len(videos), np.nan)
    vectors = np.concatenate(arrays) if arrays else np.zeros((0, source.numbers), source.dtype)
    places = (unknown, unknown, nowhere, nowhere)
    return Features(np.array(videos, np.str_), np.array(clips, np.int32), *places, vectors, _failed(output, name))


def _failed(output: ObjectStore, name: str) -> dict[str, str]:
    table = features.read_videos(output, name)
    rows = zip(table.column("video_id").to_pylist(), table.column("error").to_pylist(), strict=True)
    return {video: error for video, error in rows if error is not None}

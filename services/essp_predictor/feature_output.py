"""Writes the vectors of an extract job from its saved parts (`essp_common/artifacts/features.py`).

Parts are read one after the other, and only whole videos are written: the last video of a part waits for the next part,
which may contain more of its clips. So the memory is one part, the longest video and two tables of the output. What is
written follows from the plan and the saved parts alone, so it is the same bytes for any number of workers, whether or
not some of them died: a predictor that dies here leaves no manifest, and the next one writes everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp_common.artifacts import features, layout
from essp_common.artifacts.features import FeatureManifest, FeatureRows, FeatureSource
from essp_common.artifacts.partial_scores import ScoredPart
from essp_common.artifacts.removal import lies_within
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.timing import Timing
from essp_common.errors import PermanentError
from essp_common.job.extract_spec import ExtractSpec
from essp_common.job.spec import JobSpec
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import PlannedClip

_TABLE_BYTES = 2**27
"""Bytes of the vectors of a table of the output; the last one may have fewer."""
_WRITES = 16
"""NumPy files that are written at the same time."""


Pieces = Iterator[tuple[int, int, ScoredPart]]
"""Saved parts in index order, without a gap: the first index of each, the index after its last, and the part."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    videos: int
    """Videos of the catalog."""
    failed: int
    """Those that lack the vectors of some source."""


@dataclass(frozen=True, slots=True)
class _Clips:
    """Consecutive clips of whole videos, one row each."""

    video: NDArray[np.int64]
    """Index in the plan's view."""
    index: NDArray[np.int64]
    """In the plan; once videos are whole, within the video."""
    first_frame: NDArray[np.int64]
    last_frame: NDArray[np.int64]
    present: NDArray[np.bool_]
    """Whether it has a vector."""
    vectors: NDArray[np.floating[Any]]
    """(N, D); a missing one is NaN."""

    def __len__(self) -> int:
        return len(self.video)

    def at(self, rows: slice | NDArray[Any]) -> _Clips:
        return _Clips(*(getattr(self, column.name)[rows] for column in fields(self)))

    @property
    def edges(self) -> NDArray[np.intp]:
        """Where the clips of each video begin, and the end."""
        return np.flatnonzero(np.diff(self.video, prepend=-1, append=-1))


@dataclass(slots=True)
class _Source:
    """One source, while it is written."""

    name: str
    stream: str
    clips: NDArray[np.int32]
    """Of each video of the view: how many clips have a vector."""
    rows: int = 0
    parts: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    """Video -> why one of its clips is missing."""
    numbers: int = 0


class FeatureOutput:
    """The features of one job."""

    def __init__(self, output: ObjectStore, spec: JobSpec, catalog: Catalog) -> None:
        """`catalog`: of the job, as `open_data` returns it."""
        if spec.extract is None:
            raise ValueError(f"job {spec.name} extracts nothing")
        self._phases = phases = Phases(spec, catalog)
        self._output = output
        self._spec = spec
        self._extract: ExtractSpec = spec.extract
        self._catalog = catalog
        self._plan = phases.plan(0)
        self._rows = phases.view(0).rows
        self._last_frames = self._rows.numbers("last_frame").astype(np.int64)
        """Of each video of the view."""
        self._files = features.file_names(list(map(self._id, range(len(self._rows))))) if self._arrays else []

    def write(
        self, pieces: Callable[[str], Pieces], identity: str, plan_digest: int, sources: Sequence[tuple[str, str]]
    ) -> Written:
        """Write everything. `pieces`: of a stream. `plan_digest`: of the plan that they were made from. `sources`: the
        name and the stream of each. Safe to repeat.

        Raises `PermanentError` if the catalog is another one than the parts were made from; then what an earlier run
        has written stays.
        """
        if self._phases.digest != plan_digest:
            raise PermanentError(
                f"the catalog of job {self._spec.name} has changed since the job began; start the job again, and it "
                "computes the vectors of the videos that are in the catalog now"
            )
        self._output.delete(features.MANIFEST)  # before anything is written: without it, nothing here looks complete
        found = [
            self._write_source(_Source(*source, np.zeros(len(self._rows), np.int32)), pieces) for source in sources
        ]
        self._remove_others(found)
        manifest = FeatureManifest(
            job=self._spec.name,
            identity=identity,
            sources={source.name: self._described(source) for source in found},
            extract=self._extract.model_dump(mode="json"),
            clip=self._spec.clip.model_dump(mode="json"),
            sampling=self._spec.sampling.model_dump(mode="json"),
            streams={name: stream.model_dump(mode="json") for name, stream in self._spec.streams.items()},
        )
        self._output.put(features.MANIFEST, (manifest.model_dump_json(indent=2) + "\n").encode())
        whole = np.all([source.clips > 0 for source in found], axis=0)
        return Written(len(self._catalog.rows), len(self._catalog.rows) - int(whole.sum()))

    @property
    def _arrays(self) -> bool:
        return self._extract.format == "npy"

    def _id(self, video: int) -> str:
        return self._rows.text("id", video)

    def _write_source(self, source: _Source, pieces: Callable[[str], Pieces]) -> _Source:
        source.numbers = _numbers(source.name, pieces(source.stream))
        with ThreadPoolExecutor(_WRITES, thread_name_prefix="essp-features") as pool:
            written = _Tables(self._output, source)
            for clips in self._whole_videos(source, pieces(source.stream)):
                np.add.at(source.clips, clips.video[clips.present], 1)
                if self._arrays:
                    source.rows += sum(pool.map(lambda one: self._write_array(source, one), _by_video(clips)))
                    continue
                rows = _pooled(clips, self._extract.pool) if self._pools else clips.at(clips.present)
                source.rows += len(rows)
                written.add(self._named(rows))
            written.close()
        self._write_videos(source)
        return source

    @property
    def _pools(self) -> bool:
        return self._extract.pool != "none"

    # --- from the parts to the clips of whole videos ---

    def _whole_videos(self, source: _Source, pieces: Pieces) -> Iterator[_Clips]:
        waiting: list[_Clips] = []
        for start, stop, part in pieces:
            read = self._clips_of(source, part, start, stop)
            last = int(read.edges[-2])
            if stop == len(self._plan):
                yield _numbered(_joined([*waiting, read]))
            elif last or (waiting and waiting[-1].video[-1] != read.video[0]):
                yield _numbered(_joined([*waiting, read.at(slice(0, last))]))
                waiting = [read.at(slice(last, None))]
            else:  # all of it belongs to the video that waits
                waiting.append(read)

    def _clips_of(self, source: _Source, part: ScoredPart, start: int, stop: int) -> _Clips:
        """The planned clips from `start` to `stop`, with the vectors that the part has."""
        source.errors.update(part.errors)
        planned = sorted(chain.from_iterable(self._plan.units(start, stop)))
        video = np.array([clip.video for clip in planned], np.int64)
        vectors = np.full((len(planned), source.numbers), np.nan, self._extract.dtype)
        present = np.zeros(len(planned), np.bool_)
        table = part.tables.get(source.name)
        if table is not None and table.features is not None and len(table):
            places = table.clip_index - start
            vectors[places], present[places] = table.features, True
        return _Clips(
            video,
            np.arange(start, stop),
            np.array([clip.first_frame for clip in planned], np.int64),
            np.minimum([_last_frame(clip) for clip in planned], self._last_frames[video]),
            present,
            vectors,
        )

    # --- from clips to what is written ---

    def _named(self, rows: _Clips) -> FeatureRows:
        """The rows of a table, with names and times."""
        start_s, end_s = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        names: list[str] = []
        edges = rows.edges.tolist()
        for begin, end in pairwise(edges):
            row = self._rows[int(rows.video[begin])]
            names += [row.id] * (end - begin)
            if (timing := Timing(row)).known:
                start_s[begin:end] = [timing.shown_s(frame) for frame in rows.first_frame[begin:end].tolist()]
                end_s[begin:end] = [timing.shown_s(frame + 1) for frame in rows.last_frame[begin:end].tolist()]
        numbers = rows.index.astype(np.int32)
        return FeatureRows(tuple(names), numbers, rows.first_frame, rows.last_frame, start_s, end_s, rows.vectors)

    def _write_array(self, source: _Source, clips: _Clips) -> int:
        """The NumPy file of one video; returns the number of its vectors."""
        if not clips.present.any():
            return 0
        vectors = _pooled(clips, self._extract.pool).vectors[0] if self._pools else clips.vectors
        key = features.array_key(source.name, self._files[int(clips.video[0])])
        self._output.put(key, features.array_bytes(vectors))
        return 1 if self._pools else int(clips.present.sum())

    def _write_videos(self, source: _Source) -> None:
        """The table of videos: all of the catalog, in its order."""
        place = {self._id(video): video for video in range(len(self._rows))}
        rows = self._catalog.rows
        columns: list[list[Any]] = [[] for _ in features.VIDEOS]
        for number in range(len(rows)):
            name = rows.text("id", number)
            video = place.get(name)
            clips = 0 if video is None else int(source.clips[video])
            error = source.errors.get(name) if video is not None else rows.text("error", number) or "not usable"
            file = self._files[video] if self._arrays and video is not None and clips else None
            of_video = (
                *(name, rows.text("class_name", number), rows.text("split", number)),
                *(min(clips, 1) if self._pools else clips, clips, error, file),
            )
            for column, value in zip(columns, of_video, strict=True):
                column.append(value)
        self._output.put(
            features.videos_key(source.name), tables.packed(features.VIDEOS, [features.videos_table(columns)])
        )

    def _described(self, source: _Source) -> FeatureSource:
        videos = int((source.clips > 0).sum())
        return FeatureSource(
            numbers=source.numbers,
            dtype=self._extract.dtype,
            format=self._extract.format,
            pool=self._extract.pool,
            rows=source.rows,
            videos=videos,
            failed=len(self._catalog.rows) - videos,
            parts=tuple(source.parts),
        )

    def _remove_others(self, sources: Sequence[_Source]) -> None:
        """Remove what an earlier run of the job has written and this one has not: readers take all files of a folder.
        Only keys that jobs write are removed."""
        kept = {features.videos_key(source.name) for source in sources}
        for source in sources:
            kept.update(f"{layout.FEATURES}{source.name}/{name}" for name in source.parts)
            if self._arrays:
                kept.update(features.array_key(source.name, self._files[v]) for v in np.flatnonzero(source.clips))
        others = [info.key for info in self._output.list(layout.FEATURES) if info.key not in kept]
        for key in others:
            if layout.is_own(key) and lies_within(self._output, key):
                self._output.delete(key)


class _Tables:
    """The tables of a source, each written once it is large enough."""

    def __init__(self, output: ObjectStore, source: _Source) -> None:
        self._output = output
        self._source = source
        self._waiting: list[pa.Table] = []
        self._rows = 0
        """Of those that wait."""

    def add(self, rows: FeatureRows) -> None:
        if not len(rows):
            return
        self._waiting.append(rows.table())
        self._rows += len(rows)
        most = max(1, _TABLE_BYTES // (rows.vectors.nbytes // len(rows)))
        while self._rows >= most:
            whole = pa.concat_tables(self._waiting)
            self._write(whole[:most])
            self._waiting = [whole[most:]]
            self._rows -= most

    def close(self) -> None:
        """Write what is left."""
        if self._rows:
            self._write(pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0

    def _write(self, table: pa.Table) -> None:
        key = features.part_key(self._source.name, len(self._source.parts))
        self._output.put(key, tables.packed(table.schema, [table.combine_chunks()]))
        self._source.parts.append(key.rpartition("/")[2])


def _numbers(source: str, pieces: Pieces) -> int:
    """The length of a vector; 0 if there is none."""
    for _, _, part in pieces:
        table = part.tables.get(source)
        if table is not None and table.features is not None and len(table):
            return int(table.features.shape[1])
    return 0


def _by_video(clips: _Clips) -> Iterator[_Clips]:
    edges = clips.edges.tolist()
    return (clips.at(slice(begin, end)) for begin, end in pairwise(edges))


def _pooled(clips: _Clips, pool: str) -> _Clips:
    """One row for each video with a vector: the mean or the maximum over its clips, in double precision."""
    rows = clips.at(clips.present)
    begins, ends = rows.edges[:-1], rows.edges[1:]
    if not len(begins):
        return rows
    exact = rows.vectors.astype(np.float64)
    if pool == "max":
        vectors = np.maximum.reduceat(exact, begins, axis=0)
    else:
        vectors = np.add.reduceat(exact, begins, axis=0) / (ends - begins)[:, None]
    return _Clips(
        rows.video[begins],
        np.zeros(len(begins), np.int64),
        rows.first_frame[begins],
        rows.last_frame[ends - 1],
        rows.present[begins],
        vectors.astype(rows.vectors.dtype),
    )


def _numbered(clips: _Clips) -> _Clips:
    """The clips of whole videos, with their numbers in the videos for their indices."""
    begins = clips.edges[:-1]
    within = np.arange(len(clips)) - np.repeat(begins, np.diff(clips.edges))
    return _Clips(clips.video, within, clips.first_frame, clips.last_frame, clips.present, clips.vectors)


def _joined(parts: Sequence[_Clips]) -> _Clips:
    if len(parts) == 1:
        return parts[0]
    return _Clips(*(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(_Clips)))


def _last_frame(clip: PlannedClip) -> int:
    """The last frame of a clip that the plan names; beyond the end of a video, its last one is repeated."""
    if clip.offsets:
        return max(first + of_snippet[-1] for first, of_snippet in zip(_starts(clip), clip.offsets, strict=True))
    return _starts(clip)[-1] + clip.reach


def _starts(clip: PlannedClip) -> tuple[int, ...]:
    return (clip.first_frame, *clip.later)

"""The data that a benchmark reads: images in folders, images in a list, clips of a catalog, records.

    images/            a folder for each class                      a sample is an image
    images.csv         columns path and, if there are any, label    a sample is an image
    catalog.parquet    `essp catalog build`                         a sample is a clip that begins at a random frame
    data/images        `essp records build`                         a sample is a record

A source splits a sequence of samples into tasks. A task is the unit of work of one thread: one image, one clip, or
records that are adjacent in a file. A task can read its bytes only, or read, decode and scale them.

A sample that cannot be read or decoded is left out and reported by name. A store that does not respond raises
`Unavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from essp.api.clips import resize_to, seed_of
from essp.bench.places import Extent, Place, Wrap, distinct, once_each
from essp.records.images import covering, decoded, image_of
from essp.records.sources import IMAGE_SUFFIXES
from essp.uris import listed_uri
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError
from essp_common.objects.documents import CsvFile, text_of
from essp_common.objects.port import ObjectStore
from essp_common.records.reader import RecordReader, runs
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from essp_engine.video.container import VideoFile
from essp_engine.video.reader import Reader

Frames = NDArray[np.uint8]
Indices = NDArray[np.int64]
_VERSIONS = "versions/"
"""A folder that only a data set of records has."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the samples that are made."""

    side: int = 224
    """Height and width of images and frames, px."""
    frames: int = 16
    """Frames per clip."""
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """uint8 RGB pixels: `(H, W, 3)` for an image or a record, `(T, H, W, 3)` for a clip."""

    frames: Frames
    label: int
    """Index into `Source.classes`; -1: no label."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A sample that was left out."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of a task."""

    samples: Sequence[Sample]
    bytes: int
    """Bytes read. For a clip, from the keyframe before it to the keyframe after it."""
    damaged: Sequence[Damaged] = ()
    count: int = 0
    """Number of samples whose bytes were read, if nothing was decoded."""

    @property
    def good(self) -> int:
        """Number of samples that were not left out."""
        return len(self.samples) + self.count


class Task(Protocol):
    """The unit of work of one thread."""

    @property
    def size(self) -> int:
        """Number of samples."""

    def extents(self) -> Sequence[Extent]:
        """The byte ranges that it needs."""

    def read(self) -> Loaded:
        """Only read the bytes. The result has a `count` but no `samples`."""

    def load(self) -> Loaded:
        """Read, decode and scale the samples."""


class Source(Protocol):
    """Samples, accessed by index."""

    @property
    def recognised(self) -> str:
        """A description of what the source was recognised as."""

    @property
    def unit(self) -> str:
        """`image`, `clip` or `record`."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the labels."""

    def __len__(self) -> int:
        """Number of samples."""

    def tasks(self, order: Indices, seed: int) -> list[Task]:
        """Tasks for samples in this order, which a source may change locally. `seed`: determines the random choices
        within a sample."""

    def objects(self) -> Sequence[Place]:
        """All objects that may be read."""

    def through(self, wrap: Wrap) -> Source:
        """The same samples, read through other stores. `wrap` is called once for each store."""


def open_source(uri: str, stores: Stores, shape: Shape | None = None) -> Source:
    """The source at `uri`. Raises `ConfigError` if it contains nothing to read, and `NotFound`."""
    shape = shape or Shape()
    name = PurePosixPath(uri).name.lower()
    if name.endswith(".csv"):
        found: Source = _listed(uri, stores, shape)
    elif name.endswith(".parquet"):
        found = _clips(uri, read_catalog(*stores.resolve(uri)), stores, shape)
    else:
        store = stores.under(uri)
        is_records = next(iter(store.list(_VERSIONS)), None) is not None
        found = Records.open(store, shape) if is_records else _folder(uri, store, shape)
    if not len(found):
        raise ConfigError(
            f"{uri} has no {found.unit}s; give a folder or a CSV file of images, a catalog or records", code="empty"
        )
    return found


# --- images ---


@dataclass(frozen=True, slots=True)
class _ImageTask:
    place: Place
    label: int
    side: int
    size: int = 1

    def extents(self) -> Sequence[Extent]:
        return (Extent(self.place),)

    def read(self) -> Loaded:
        try:
            return Loaded((), len(self._bytes()), count=1)
        except PermanentError as error:
            return _left_out(self.place.key, error)

    def load(self) -> Loaded:
        try:
            data = self._bytes()
        except PermanentError as error:
            return _left_out(self.place.key, error)
        try:
            frames = covering(decoded(data), self.side, self.side)
        except PermanentError as error:
            return _left_out(self.place.key, error, len(data))
        return Loaded((Sample(frames, self.label),), len(data))

    def _bytes(self) -> bytes:
        return self.place.store.get(self.place.key)


@dataclass(frozen=True)
class Images:
    """Image files."""

    recognised: str
    places: tuple[Place, ...]
    labels: Indices
    classes: tuple[str, ...]
    shape: Shape
    unit: str = "image"

    def __len__(self) -> int:
        return len(self.places)

    def tasks(self, order: Indices, seed: int) -> list[Task]:
        """One task per image."""
        return [_ImageTask(self.places[i], int(self.labels[i]), self.shape.side) for i in order.tolist()]

    def objects(self) -> Sequence[Place]:
        return distinct(self.places)

    def through(self, wrap: Wrap) -> Images:
        wrap = once_each(wrap)
        return replace(self, places=tuple(place.through(wrap) for place in self.places))


def _images(recognised: str, places: list[Place], names: list[str], shape: Shape) -> Images:
    classes = tuple(sorted({name for name in names if name}))
    of = {name: number for number, name in enumerate(classes)}
    labels = np.array([of.get(name, -1) for name in names], np.int64)
    return Images(recognised, tuple(places), labels, classes, shape)


def _folder(uri: str, store: ObjectStore, shape: Shape) -> Images:
    files = [info.key for info in store.list()]
    keys = [key for key in files if PurePosixPath(key).suffix.lower() in IMAGE_SUFFIXES]
    if not keys:
        wanted = (
            f"give a folder of images ({', '.join(sorted(IMAGE_SUFFIXES))}), records, a .csv file with the "
            "column path, or a catalog (.parquet)"
        )
        if not files:
            raise NotFound(f"there are no files at {uri}; {wanted}")
        raise ConfigError(f"{uri} holds no images and no records; {wanted}", code="empty")
    names = [PurePosixPath(key).parent.name for key in keys]
    return _images("images in folders", [Place(store, key) for key in keys], names, shape)


def _listed(uri: str, stores: Stores, shape: Shape) -> Images:
    store, key = stores.resolve(uri)
    try:
        rows = list(CsvFile(uri, text_of(store.get(key))))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri} is not a CSV file in UTF-8: {error}", code="unreadable") from error
    if rows and "path" not in rows[0].values:
        raise ConfigError(f"{uri} lacks the column 'path'; it needs path, and may have label", code="missing")
    if wrong := next((row.problem for row in rows if row.problem), ""):
        raise ConfigError(f"{uri}: {wrong}", code="unreadable")
    folder = uri.rpartition("/")[0]
    places = [Place(*stores.resolve(listed_uri(row.values["path"], folder), video=True)) for row in rows]
    return _images("a list of images", places, [row.values.get("label", "") for row in rows], shape)


# --- clips ---


@dataclass(frozen=True, slots=True)
class ClipTask:
    row: VideoRow
    place: Place
    label: int
    start: int
    """First frame of the clip, relative to the row."""
    shape: Shape
    size: int = 1

    def extents(self) -> Sequence[Extent]:
        """The bytes from the keyframe at or before the first frame to the keyframe after the last frame.

        The whole file if the catalog does not record byte offsets.
        """
        row = self.row
        first = row.first_frame + self.start
        last = min(first + (self.shape.frames - 1) * self.shape.stride, row.last_frame)
        frames, offsets = np.array(row.keyframe_frame), row.keyframe_offset
        before = int(np.searchsorted(frames, first, side="right")) - 1
        behind = int(np.searchsorted(frames, last, side="right"))
        if not row.seekable or before < 0 or offsets[before] < 0:
            return (Extent(self.place, 0, row.size_bytes),)
        end = offsets[behind] if behind < len(offsets) and offsets[behind] > offsets[before] else row.size_bytes
        return (Extent(self.place, offsets[before], end - offsets[before]),)

    def read(self) -> Loaded:
        try:
            return Loaded((), sum(len(extent.read()) for extent in self.extents()), count=1)
        except PermanentError as error:
            return _left_out(self.row.id, error)

    def load(self) -> Loaded:
        read = sum(extent.length or 0 for extent in self.extents())
        try:
            frames = self._decoded()
        except PermanentError as error:
            return _left_out(self.row.id, error, read)
        return Loaded((Sample(frames, self.label),), read)

    def _decoded(self) -> Frames:
        shape = self.shape
        frames = np.empty((shape.frames, shape.side, shape.side, 3), np.uint8)
        seed = seed_of(self.row, self.start, shape.frames, shape.stride)
        resize = resize_to(None, (shape.side, shape.side), "area")
        store, key = self.place
        with ExitStack() as stack:
            path = store.local_path(key)
            file: VideoFile = stack.enter_context(store.open(key)) if path is None else path
            with Reader(file, lookahead=self.row.lookahead, declared=self.row.declared) as reader:
                for error in reader.read([seed], resize, [frames]):
                    if error is not None:
                        raise error
        return frames


@dataclass(frozen=True)
class Clips:
    """Videos of a catalog, with one clip from each."""

    recognised: str
    rows: tuple[VideoRow, ...]
    places: tuple[Place, ...]
    classes: tuple[str, ...]
    shape: Shape
    unit: str = "clip"

    def __len__(self) -> int:
        return len(self.rows)

    def tasks(self, order: Indices, seed: int) -> list[Task]:
        """One task per clip. The clip begins at a random frame that leaves enough frames for it."""
        rng = np.random.default_rng(seed)
        of = {name: number for number, name in enumerate(self.classes)}
        span = (self.shape.frames - 1) * self.shape.stride
        tasks: list[Task] = []
        for i in order.tolist():
            row = self.rows[i]
            room = max(0, row.last_frame - row.first_frame - span)
            label = of.get(row.class_name, -1)
            tasks.append(ClipTask(row, self.places[i], label, int(rng.integers(room + 1)), self.shape))
        return tasks

    def objects(self) -> Sequence[Place]:
        return distinct(self.places)

    def through(self, wrap: Wrap) -> Clips:
        wrap = once_each(wrap)
        return replace(self, places=tuple(place.through(wrap) for place in self.places))


def _clips(uri: str, catalog: Catalog, stores: Stores, shape: Shape) -> Clips:
    rows = tuple(row for row in catalog.rows if row.error is None)
    places = tuple(Place(*stores.resolve(row.uri, video=True)) for row in rows)
    return Clips(f"a catalog; clips of {shape.frames} frames", rows, places, catalog.classes, shape)


# --- records ---


@dataclass(frozen=True, slots=True)
class _RecordsTask:
    reader: RecordReader
    places: Indices
    """Ascending, in one file, and close together."""
    key: str
    start: int
    length: int
    side: int

    @property
    def size(self) -> int:
        return len(self.places)

    def extents(self) -> Sequence[Extent]:
        return (Extent(Place(self.reader.store, self.key), self.start, self.length),)

    def read(self) -> Loaded:
        try:
            (extent,) = self.extents()
            return Loaded((), len(extent.read()), count=len(self.places))
        except PermanentError as error:
            return _left_out(self.key, error)

    def load(self) -> Loaded:
        samples, damaged, good = [], [], set()
        table = self.reader.table
        for places, buffers in self.reader.read(self.places):
            for place, data in zip(places.tolist(), buffers, strict=True):
                entry = table[place]
                shape = int(entry["height"]), int(entry["width"]), int(entry["channels"])
                try:
                    image = covering(image_of(data, int(entry["encoding"]), shape), self.side, self.side)
                except PermanentError as error:
                    damaged.append(Damaged(self._name(place), str(error)))
                else:
                    samples.append(Sample(_coloured(image), int(entry["label"])))
                good.add(place)
        lost = [place for place in self.places.tolist() if place not in good]
        damaged += [Damaged(self._name(place), "its bytes are damaged, or not there") for place in lost]
        return Loaded(samples, self.length, damaged)

    def _name(self, place: int) -> str:
        return f"record {self.reader.table['key'][place]} in {self.key}"


@dataclass(frozen=True)
class Records:
    """Records, read as OneAccess reads them: a piece of a permutation at a time, in one pass over the file."""

    recognised: str
    reader: RecordReader
    classes: tuple[str, ...]
    shape: Shape
    unit: str = "record"
    first_piece: int = 64
    """Each piece is twice as large as the previous one, so that the first samples arrive early."""
    largest_piece: int = 8192

    @classmethod
    def open(cls, store: ObjectStore, shape: Shape) -> Records:
        """The newest version of a data set. Raises `PermanentError` if none of its files is readable."""
        reader = RecordReader(DataSet(store))
        return cls(f"records, version {reader.number}", reader, reader.classes, shape)

    def __len__(self) -> int:
        return len(self.reader)

    def tasks(self, order: Indices, seed: int) -> list[Task]:
        """One task per read request. Within a piece, samples come in file order."""
        tasks: list[Task] = []
        begin, size = 0, self.first_piece
        while begin < len(order):
            tasks += self._piece(np.sort(order[begin : begin + size]))
            begin, size = begin + size, min(2 * size, self.largest_piece)
        return tasks

    def objects(self) -> Sequence[Place]:
        store = self.reader.store
        files = [file.key for file in self.reader.version.files]
        return [Place(store, key) for key in (*(info.key for info in store.list(_VERSIONS)), *files)]

    def through(self, wrap: Wrap) -> Records:
        return replace(self, reader=RecordReader(DataSet(wrap(self.reader.store)), self.reader.number))

    def _piece(self, places: Indices) -> list[Task]:
        table = self.reader.table
        tasks: list[Task] = []
        for position, file in enumerate(self.reader.version.files):
            mine = places[self.reader.file_of(places) == position]
            begins = table["offset"][mine].astype(np.int64)
            for run in runs(begins, begins + table["length"][mine]):
                some, length = mine[run.first : run.last], run.end - run.begin
                tasks.append(_RecordsTask(self.reader, some, file.key, run.begin, length, self.shape.side))
        return tasks


def _coloured(image: Frames) -> Frames:
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def _left_out(name: str, error: EsspError, read: int = 0) -> Loaded:
    return Loaded((), read, (Damaged(name, str(error)),))

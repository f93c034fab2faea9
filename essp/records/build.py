"""Builds a version of a data set of records from a source of images.

One thread reads files in the order of the source, several decode and encode them, and they are written in the same
order. Images that cannot be decoded are named, left out and counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

import numpy as np

from essp.records.coco import clipped
from essp.records.images import Image, covering, decoded, jpeg
from essp.records.items import Box, Item, Source
from essp_common.errors import BadFrames, ConfigError, EsspError, PermanentError
from essp_common.objects.keys import escaped
from essp_common.records.chunk import Encoding, Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import FILE_BYTES, Writer
from essp_common.runtime.cores import cpu_count

log = logging.getLogger(__name__)

Encode = Literal["raw", "jpeg", "keep"]
_QUALITY = 95
_TELL_EVERY_S = 0.2
_TASK_BYTES, _TASK_FILES, _TASK_S = 2**18, 64, 0.1
"""When a task has enough files. The time is for slow stores, from which many would be read before the first record."""
_File = tuple[bytes | Record | str, list[tuple[int, Box | None]]]
"""What was read of a file, or why it cannot be; and the label and the part of the image of each of its items."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How each image is stored."""

    encode: Encode | None = None
    """`keep`: the file unchanged. `raw`: pixel values, fastest to read and largest. `jpeg`: a JPEG file. None: `keep`,
    or `jpeg` for images that are not files of their own."""
    size: tuple[int, int] | None = None
    """Height and width that each image is scaled to cover; then its centre is cropped."""
    append: bool = False
    workers: int = 0
    """Images decoded at a time; 0: one per core."""
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a build."""

    done: int
    total: int
    bytes_done: int
    elapsed_s: float
    problems: int

    @property
    def eta_s(self) -> float | None:
        """Seconds left, at the rate so far."""
        return self.elapsed_s / self.done * (self.total - self.done) if self.done else None


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a build."""

    version: int
    records: int
    bytes: int
    classes: tuple[str, ...]
    per_class: dict[str, int]
    problems: dict[str, str] = field(default_factory=dict)
    """Images that were left out -> the reason."""
    elapsed_s: float = 0.0


def build(
    source: Source, data_set: DataSet, options: BuildOptions, tell: Callable[[Progress], None] = lambda _: None
) -> Built:
    """Write all images of a source, and the version that contains them.

    Raises `ConfigError` if there are records already and `append` is not set, or if no image can be used. If it fails,
    earlier versions are unchanged.
    """
    options = replace(options, encode=_encode(source, options))
    began = due = time.monotonic()
    problems = dict(source.problems)
    for name, why in problems.items():
        log.info("%s: %s; it is left out", name, why)
    counts = Counter[str]()
    size, done = 0, 0
    with Writer(data_set, source.labels, options.append, options.file_bytes) as writer:
        labels = {name: position for position, name in enumerate(writer.classes)}
        for item, record in _records(source.items, labels, options):
            done += 1
            if isinstance(record, Record):
                writer.add(record, escaped(item.name))
                counts[item.label] += 1
                size += len(record.data)
            else:
                problems[escaped(item.name)] = record
                log.info("%s: %s; it is left out", escaped(item.name), record)
            if time.monotonic() >= due:
                due = time.monotonic() + _TELL_EVERY_S
                tell(Progress(done, len(source.items), size, time.monotonic() - began, len(problems)))
        if not counts:
            name, why = next(iter(problems.items()))
            raise ConfigError(
                f"all {len(problems)} images are unusable; the first one, {name}: {why}", code="unreadable"
            )
    per_class = {name: counts[name] for name in writer.classes if counts[name]}
    elapsed_s = time.monotonic() - began
    return Built(writer.number, counts.total(), size, writer.classes, per_class, problems, elapsed_s)


def _encode(source: Source, options: BuildOptions) -> Encode:
    """The encoding to use. Raises `ConfigError` if `keep` is impossible."""
    encode = options.encode or ("jpeg" if source.cut else "keep")
    if encode == "keep" and source.cut:
        raise ConfigError(f"keep: a {source.unit} is not a file; use raw or jpeg", field="--encode", code="conflict")
    if encode == "keep" and options.size is not None:
        raise ConfigError(
            "a file that is kept unchanged cannot be scaled; use it with --encode raw or jpeg",
            field="--size",
            code="conflict",
        )
    return encode


def _records(
    items: Iterable[Item], labels: dict[str, int], options: BuildOptions
) -> Iterator[tuple[Item, Record | str]]:
    """The record of each item, in order, or a text saying why the item cannot be used."""
    workers = options.workers or cpu_count()
    begun: deque[tuple[list[Item], Future[list[Record | str]]]] = deque()
    with ThreadPoolExecutor(workers, "essp-records-build") as pool:
        for parts, files in _tasks(items, labels):
            begun.append((parts, pool.submit(_made, files, options)))
            while begun and (len(begun) == 4 * workers or begun[0][1].done()):
                yield from _finished(*begun.popleft())
        for parts, records in begun:
            yield from _finished(parts, records)


def _finished(parts: list[Item], records: Future[list[Record | str]]) -> Iterator[tuple[Item, Record | str]]:
    return zip(parts, records.result(), strict=True)


def _tasks(items: Iterable[Item], labels: dict[str, int]) -> Iterator[tuple[list[Item], list[_File]]]:
    """Items, and the files that they are in; small files come together, since a task costs more than one of them."""
    parts: list[Item] = []
    files: list[_File] = []
    size, ends_s = 0, 0.0
    for _, group in groupby(items, key=lambda item: item.read):
        of_file = list(group)
        if not files:
            ends_s = time.monotonic() + _TASK_S
        data = _read(of_file[0])
        parts += of_file
        files.append((data, [(labels.get(item.label, -1), item.box) for item in of_file]))
        size += len(data.data if isinstance(data, Record) else data)
        if size >= _TASK_BYTES or len(files) == _TASK_FILES or time.monotonic() >= ends_s:
            yield parts, files
            parts, files, size = [], [], 0
    if files:
        yield parts, files


def _read(item: Item) -> bytes | Record | str:
    try:
        return item.read()
    except PermanentError as error:
        return str(error)
    except EsspError:  # not the fault of this file: a store does not answer, or refuses
        raise
    except Exception as error:  # noqa: BLE001  one file must not end the build
        return _unexpected(error)


def _unexpected(error: Exception) -> str:
    log.exception("unexpected error; the image is left out")
    return f"{type(error).__name__}: {error}"


def _made(files: Iterable[_File], options: BuildOptions) -> list[Record | str]:
    """The records of several files, in order."""
    return [record for data, wanted in files for record in _made_of(data, wanted, options)]


def _made_of(
    data: bytes | Record | str, wanted: list[tuple[int, Box | None]], options: BuildOptions
) -> list[Record | str]:
    try:
        return _records_of(data, wanted, options)
    except Exception as error:  # noqa: BLE001  one file must not end the build
        return [_unexpected(error)] * len(wanted)


def _records_of(
    data: bytes | Record | str, wanted: list[tuple[int, Box | None]], options: BuildOptions
) -> list[Record | str]:
    """The records of one file, each with its label and its part of the image."""
    if isinstance(data, str):
        return [data] * len(wanted)
    if isinstance(data, Record) and options.size is None and options.encode != "jpeg":
        return [Record(data.data, label, data.encoding, data.height, data.width, data.channels) for label, _ in wanted]
    try:
        if isinstance(data, Record):
            image = np.frombuffer(data.data, np.uint8).reshape(data.height, data.width, data.channels)
        else:
            image = decoded(data)
    except BadFrames as error:
        return [str(error)] * len(wanted)
    if options.encode == "keep" and isinstance(data, bytes):
        return [Record(data, label, Encoding.ENCODED) for label, _ in wanted]
    return [_record(image, label, box, options) for label, box in wanted]


def _record(image: Image, label: int, box: Box | None, options: BuildOptions) -> Record | str:
    try:
        if box is not None:
            image = _cut(image, box)
        if options.size is not None:
            image = covering(image, *options.size)
        if options.encode == "jpeg":
            return Record(jpeg(np.ascontiguousarray(image), _QUALITY), label, Encoding.ENCODED)
        return Record.of_image(np.ascontiguousarray(image), label)
    except (BadFrames, ValueError) as error:
        return str(error)


def _cut(image: Image, box: Box) -> Image:
    """Cut a box out of an image. Raises `ValueError` if the box belongs to an image of another size."""
    height, width = image.shape[:2]
    if box.image not in (None, (height, width)):
        raise ValueError(f"its image has {height}x{width} pixels, and the annotations are of one of {box.image}")
    inside = clipped(box, height, width)
    return image[inside.top : inside.bottom, inside.left : inside.right]

"""Makes a version of a data set of records from a source of images.

Files are read in the order of the source by one thread, decoded and encoded by several, and written in the same order.
What cannot be decoded is named, left out and counted.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np

from essp.records.images import covering, decoded, jpeg
from essp.records.sources import Item, Source
from essp_common.errors import BadFrames, ConfigError, NotFound
from essp_common.records.chunk import Encoding, Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import FILE_BYTES, Writer
from essp_common.runtime.process import cpu_count

log = logging.getLogger(__name__)

Encode = Literal["raw", "jpeg", "keep"]
_QUALITY = 95
_TELL_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What becomes of each image."""

    encode: Encode = "keep"
    """`keep`: its file as it is. `raw`: numbers, the fastest to read and the largest. `jpeg`: a JPEG file."""
    size: tuple[int, int] | None = None
    """Height and width that each is scaled to cover, its centre cut out."""
    append: bool = False
    workers: int = 0
    """Images decoded at a time; 0: one a core."""
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is."""

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
    """What a build came to."""

    version: int
    records: int
    bytes: int
    classes: tuple[str, ...]
    per_class: dict[str, int]
    problems: dict[str, str] = field(default_factory=dict)
    """Images that were left out, and why."""
    elapsed_s: float = 0.0


def build(
    source: Source, data_set: DataSet, options: BuildOptions, tell: Callable[[Progress], None] = lambda _: None
) -> Built:
    """Write all images of a source, and the version that has them.

    Raises `ConfigError` if there are records already and `append` is not set, or if no image can be used. Whatever
    stops it, the versions before are what they were.
    """
    if options.encode == "keep" and options.size is not None:
        raise ConfigError("--size: a file that is kept as it is cannot be scaled; use it with --encode raw or jpeg")
    began = due = time.monotonic()
    problems: dict[str, str] = {}
    counts = Counter[str]()
    size, done = 0, 0
    with Writer(data_set, source.labels, options.append, options.file_bytes) as writer:
        labels = {name: position for position, name in enumerate(writer.classes)}
        for item, record in _records(source.items, labels, options):
            done += 1
            if isinstance(record, Record):
                writer.add(record)
                counts[item.label] += 1
                size += len(record.data)
            else:
                problems[item.name] = record
                log.info("%s: %s; it is left out", item.name, record)
            if time.monotonic() >= due:
                due = time.monotonic() + _TELL_EVERY_S
                tell(Progress(done, len(source.items), size, time.monotonic() - began, len(problems)))
        if not counts:
            name, why = next(iter(problems.items()))
            raise ConfigError(f"none of the {len(problems)} images can be used; the first one, {name}: {why}")
    per_class = {name: counts[name] for name in writer.classes if counts[name]}
    elapsed_s = time.monotonic() - began
    return Built(writer.number, counts.total(), size, writer.classes, per_class, problems, elapsed_s)


def _records(
    items: Iterable[Item], labels: dict[str, int], options: BuildOptions
) -> Iterator[tuple[Item, Record | str]]:
    """What each item becomes, in their order; a text: why it cannot be used."""
    workers = options.workers or cpu_count()
    begun: deque[tuple[Item, Future[Record | str]]] = deque()
    left = iter(items)
    with ThreadPoolExecutor(workers, "essp-records-build") as pool:
        while True:
            for item in islice(left, 4 * workers - len(begun)):
                begun.append((item, pool.submit(_record, _read(item), labels.get(item.label, -1), options)))
            if not begun:
                return
            item, record = begun.popleft()
            yield item, record.result()


def _read(item: Item) -> bytes | Record | str:
    try:
        return item.read()
    except (BadFrames, NotFound) as error:
        return str(error)


def _record(data: bytes | Record | str, label: int, options: BuildOptions) -> Record | str:
    if isinstance(data, str):
        return data
    if isinstance(data, Record) and options.size is None and options.encode != "jpeg":
        return Record(data.data, label, data.encoding, data.height, data.width, data.channels)
    try:
        if isinstance(data, Record):
            image = np.frombuffer(data.data, np.uint8).reshape(data.height, data.width, data.channels)
        else:
            image = decoded(data)
        if options.encode == "keep" and isinstance(data, bytes):
            return Record(data, label, Encoding.ENCODED)
        if options.size is not None:
            image = covering(image, *options.size)
        if options.encode == "jpeg":
            return Record(jpeg(image, _QUALITY), label, Encoding.ENCODED)
        return Record.of_image(np.ascontiguousarray(image), label)
    except BadFrames as error:
        return str(error)

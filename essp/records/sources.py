"""Where records come from: image folders, CSV lists, archives, and CIFAR's own files.

What a source is, is seen from what it holds; `Source.recognised` says what was seen. Labels are known before any image
is read. A file that is no image by its name is counted, not listed.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from essp.records.archives import Archive, open_archive
from essp_common.errors import ConfigError
from essp_common.records.chunk import Record
from essp_common.wiring import Stores

IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"))
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing"))
_CIFAR_BYTES, _CIFAR_SIDE = 3072, 32
_LABEL_SUFFIX = ".cls"
"""webdataset: the class of a sample beside its image."""


@dataclass(frozen=True, slots=True)
class Item:
    """One image of a source."""

    name: str
    label: str
    """Empty: it has none."""
    read: Callable[[], bytes | Record]
    """Its file, or the record itself. Raises `BadFrames` and `NotFound`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Images and their labels."""

    recognised: str
    """What it was taken for, and why."""
    items: tuple[Item, ...]
    ignored: Counter[str] = field(default_factory=Counter)
    """Files that are no images: how many of each suffix."""
    classes: tuple[str, ...] = ()
    """In the order that the source gives them; empty: by name."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All classes, in order."""
        return self.classes or tuple(sorted({item.label for item in self.items if item.label}))


@contextmanager
def open_source(uri: str, stores: Stores, within: str = "") -> Iterator[Source]:
    """What lies at `uri`, or in its folder `within` (such as `train`).

    Raises `ConfigError` for what holds no images, or several splits of which none is said.
    """
    name = PurePosixPath(uri).name.lower()
    with ExitStack() as opened:
        if name.endswith(".csv"):
            found = _csv(uri, stores)
        elif name.endswith((".tar", ".tar.gz", ".tgz", ".zip")):
            found = _archive(opened.enter_context(open_archive(*stores.resolve(uri), name.endswith(".zip"))))
        else:
            found = _folder(uri, stores)
        yield _checked(_of_split(found, within), uri)


def _checked(source: Source, uri: str) -> Source:
    if not source.items:
        seen = ", ".join(f"{count} {suffix}" for suffix, count in source.ignored.most_common(5)) or "nothing"
        raise ConfigError(
            f"{uri} holds no images ({seen}); give a folder with a folder for each class, a CSV file with the columns "
            "path and label, or a .tar or .zip archive"
        )
    return source


def _of_split(source: Source, within: str) -> Source:
    """The images in one folder of the first level. Those of a training and of a test set do not get mixed."""
    if within:
        inside = tuple(item for item in source.items if item.name.startswith(within.strip("/") + "/"))
        return replace(source, items=inside, recognised=f"{source.recognised}; those in {within}")
    found = sorted({item.name.partition("/")[0] for item in source.items} & _SPLITS)
    if len(found) > 1:
        raise ConfigError(f"it holds {' and '.join(found)}; say which one to read, as in --within {found[-1]}")
    return source


def _folder(uri: str, stores: Stores) -> Source:
    store = stores.under(uri)
    items, ignored = [], Counter[str]()
    for info in store.list():
        path = PurePosixPath(info.key)
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            ignored[path.suffix or "without a suffix"] += 1
            continue
        items.append(Item(info.key, _class_of(path), partial(store.get, info.key)))
    return Source("images in folders, each named after a class", tuple(items), ignored)


def _csv(uri: str, stores: Stores) -> Source:
    store, key = stores.resolve(uri)
    try:
        rows = csv.DictReader(io.StringIO(store.get(key).decode("utf-8-sig"), newline=""), strict=True)
        listed = list(rows)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{uri} is no CSV file in UTF-8: {error}") from error
    if missing := {"path", "label"} - set(rows.fieldnames or ()):
        raise ConfigError(f"{uri} lacks the column {min(missing)!r}; it needs path and label")
    folder = uri.rpartition("/")[0]
    items = []
    for row in listed:
        path = row["path"] or ""
        whole = path if "://" in path else f"file://{path}" if path.startswith("/") else f"{folder}/{path}"
        items.append(Item(path, row["label"] or "", partial(_get, stores, whole)))
    return Source("a CSV file with the columns path and label", tuple(items))


def _get(stores: Stores, uri: str) -> bytes:
    store, key = stores.resolve(uri, video=True)
    return store.get(key)


def _archive(archive: Archive) -> Source:
    names = archive.names
    if binary := [one for one in names if PurePosixPath(one).name.endswith(".bin") and "batch" in one]:
        return _cifar(archive, names, binary)
    labels = {
        one[: -len(_LABEL_SUFFIX)]: archive.read(one).decode("utf-8", "replace").strip()
        for one in names
        if one.endswith(_LABEL_SUFFIX)
    }
    items, ignored = [], Counter[str]()
    for one in names:
        path = PurePosixPath(one)
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            if path.suffix != _LABEL_SUFFIX:
                ignored[path.suffix or "without a suffix"] += 1
            continue
        label = labels.get(one[: -len(path.suffix)], _class_of(path))
        items.append(Item(one, label, partial(archive.read, one)))
    what = f"an archive with a {_LABEL_SUFFIX} file for each image" if labels else "an archive of folders"
    return Source(what, tuple(items), ignored)


def _cifar(archive: Archive, names: list[str], binary: list[str]) -> Source:
    """The binary version of CIFAR-10: in each file, a byte that is the label, then 32 x 32 red, green and blue ones."""
    meta = [one for one in names if one.endswith(".meta.txt")]
    if len(meta) != 1:
        raise ConfigError("CIFAR: the archive lacks batches.meta.txt; use cifar-10-binary.tar.gz as it is published")
    classes = tuple(archive.read(meta[0]).decode().split())
    items: list[Item] = []
    for one in sorted(binary):
        if "test" in PurePosixPath(one).name:
            continue
        data = archive.read(one)
        if len(data) % (_CIFAR_BYTES + 1):
            raise ConfigError(f"CIFAR: {one} is damaged: its length is no multiple of {_CIFAR_BYTES + 1}")
        for number in range(len(data) // (_CIFAR_BYTES + 1)):
            at = number * (_CIFAR_BYTES + 1)
            if data[at] >= len(classes):
                raise ConfigError(f"CIFAR: {one} has a label {data[at]}, and there are {len(classes)} classes")
            read = _CifarImage(data, at, data[at])
            items.append(Item(f"{one}:{number}", classes[data[at]], read))
    return Source("the binary version of CIFAR-10, training batches", tuple(items), classes=classes)


@dataclass(frozen=True, slots=True)
class _CifarImage:
    data: bytes
    at: int
    label: int

    def __call__(self) -> Record:
        planes = np.frombuffer(self.data, np.uint8, _CIFAR_BYTES, self.at + 1)
        image = planes.reshape(3, _CIFAR_SIDE, _CIFAR_SIDE).transpose(1, 2, 0)
        return Record.of_image(np.ascontiguousarray(image), self.label)


def _class_of(path: PurePosixPath) -> str:
    return path.parent.name

"""The binary versions of CIFAR-10 and CIFAR-100, in the published archives or unpacked.

Each file is a sequence of records: the label (CIFAR-100 has two, coarse and fine), then 32 x 32 red, green and blue
bytes. The Python versions are pickles, and loading a pickle can run arbitrary code; they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from essp.records.archives import Archive
from essp.records.items import Item, Source
from essp_common.errors import ConfigError
from essp_common.records.chunk import Encoding, Record

_SIDE = 32
_BYTES = 3 * _SIDE * _SIDE
_PICKLED = {
    frozenset(("data_batch_1", "batches.meta")): "cifar-10",
    frozenset(("train", "test", "meta")): "cifar-100",
}
"""Files of the Python versions."""


@dataclass(frozen=True, slots=True)
class _Layout:
    name: str
    names: str
    """The file that lists the classes, one per line."""
    labels: int
    """Bytes before an image; the last one is its label."""
    training: str
    """Prefix of the names of training files."""


_LAYOUTS = (
    _Layout("CIFAR-10", "batches.meta.txt", 1, "data_batch"),
    _Layout("CIFAR-100, fine labels", "fine_label_names.txt", 2, "train"),
)


def cifar(archive: Archive) -> Source | None:
    """The training images; None if the archive is something else. Raises `ConfigError` for a damaged archive and for
    pickles."""
    names = archive.names
    stems = {PurePosixPath(name).name: name for name in names}
    binary = sorted(name for name in names if name.endswith(".bin"))
    for layout in _LAYOUTS:
        training = [name for name in binary if PurePosixPath(name).name.startswith(layout.training)]
        if training and layout.names in stems:
            return _read(archive, layout, training, _lines(layout.names, archive.read(stems[layout.names])))
    if any("batch" in PurePosixPath(name).name for name in binary):
        raise ConfigError(
            "CIFAR: the archive lacks batches.meta.txt; use cifar-10-binary.tar.gz as published",
            code="unreadable",
        )
    for pickled, data_set in _PICKLED.items():
        if pickled <= stems.keys():
            raise ConfigError(
                f"CIFAR: these are pickles, and reading a pickle runs what it says; use {data_set}-binary.tar.gz, "
                "which has the same images and is published with it",
                code="refused",
            )
    return None


def _read(archive: Archive, layout: _Layout, files: Sequence[str], classes: tuple[str, ...]) -> Source:
    if len(set(classes)) < len(classes):
        raise ConfigError(f"CIFAR: {layout.names} has a class twice; use the archive as published", code="unreadable")
    step = layout.labels + _BYTES
    items: list[Item] = []
    for name in files:
        data = archive.read(name)
        if not data or len(data) % step:
            raise ConfigError(
                f"CIFAR: {name} is damaged: {len(data)} bytes are not a multiple of {step}", code="unreadable"
            )
        rows = np.frombuffer(data, np.uint8).reshape(-1, step)
        planes = rows[:, layout.labels :].reshape(-1, 3, _SIDE * _SIDE)
        pixels = planes.transpose(0, 2, 1).tobytes()
        for number, label in enumerate(rows[:, layout.labels - 1].tolist()):
            if label >= len(classes):
                raise ConfigError(
                    f"CIFAR: {name} has a label {label}, and there are {len(classes)} classes", code="unreadable"
                )
            items.append(Item(f"{name}:{number}", classes[label], _Image(pixels, number * _BYTES, label)))
    return Source(f"the binary version of {layout.name}, training images", tuple(items), classes=classes)


def _lines(name: str, text: bytes) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in text.decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        raise ConfigError(f"CIFAR: {name} is not UTF-8 text (byte {error.start})", code="unreadable") from error
    return tuple(line for line in lines if line)


@dataclass(frozen=True, slots=True)
class _Image:
    pixels: bytes
    at: int
    label: int

    def __call__(self) -> Record:
        data = self.pixels[self.at : self.at + _BYTES]
        return Record(data, self.label, Encoding.RAW, _SIDE, _SIDE, channels=3)

"""Small data sets of records, and jobs on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer

CLASSES = ("dark", "light")
SIDE = 24


def image(number: int, label: int, side: int = SIDE) -> NDArray[np.uint8]:
    """`(side, side + 4, 3)`: noise, dark or light."""
    noise = np.random.default_rng(number).integers(0, 90, (side, side + 4, 3), dtype=np.uint8)
    return noise + np.uint8(140 * max(label, 0))


def raw(number: int, label: int) -> Record:
    """An image as numbers."""
    return Record.of_image(image(number, label), label)


def png(number: int, label: int) -> Record:
    """An image as a file."""
    return Record(cv2.imencode(".png", image(number, label)[..., ::-1])[1].tobytes(), label)


def make_records(
    folder: Path,
    labels: list[int],
    make: Callable[[int, int], Record] = raw,
    file_bytes: int = 2**20,
    classes: tuple[str, ...] = CLASSES,
    named: str = "",
) -> DataSet:
    """A data set with these labels; added to those that are there. `named`: what their names begin with, if they have
    any."""
    folder.mkdir(parents=True, exist_ok=True)
    data_set = DataSet(DirectoryStore.from_url(folder.as_uri()))
    with Writer(data_set, classes, bool(data_set.versions()), file_bytes) as writer:
        for number, label in enumerate(labels):
            writer.add(make(number, label), f"{named} {number}" if named else "")
    return data_set


def records_job(records: Path, output: Path, more: Mapping[str, Any] | None = None) -> JobSpec:
    """One trainer of the small network on 16 x 16 crops."""
    base = {
        "name": "records",
        "output": output.as_uri(),
        "epochs": 2,
        "data": {"records": records.as_uri()},
        "clip": {"resize": {"height": 20, "width": 20}},
        "sampling": {"window": 8, "seed": 1},
        "trainers": {
            "net": {
                "stream": "rgb",
                "batch_size": 4,
                "threads": 1,
                "checkpoint": {"parallel": "thread"},
                "augment": {"crop": 16, "flip": False},
            }
        },
    }
    return JobSpec.model_validate(base | dict(more or {}))

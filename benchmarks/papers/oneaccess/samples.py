"""Its Figures 7 and 10: the time to read a sample of records, by its size; ten samples of each size.

The files are in the page cache. The paper's figures show about the same time for all samples of more than 10 (MS-COCO:
100) records, because each reads the whole file.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart
from benchmarks.papers.oneaccess.pictures import cifar, large_records
from benchmarks.papers.study import Options, Part, Steps, Values
from essp_common.objects.directory import DirectoryStore
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet

SIZES = (1, 10, 100, 1000, 10_000, 50_000)
INSTANCES = 10
MOST_BYTES = 2 * 2**30
"""Of a sample: larger ones are left out."""
SETS = {"cifar": "32x32", "large": "224x224"}


def sample_ms(options: Options, name: str) -> dict[str, list[float]]:
    """Size -> milliseconds to read each of ten samples of it, chosen at random, in the order of the file."""
    path: Path = cifar(options).records if name == "cifar" else large_records(options, "raw")
    reader = RecordReader(DataSet(DirectoryStore.from_url(path.absolute().as_uri())))
    assert reader.shape is not None
    length = int(np.prod(reader.shape))
    sizes = [size for size in SIZES if size <= len(reader) and size * length <= MOST_BYTES]
    rows = np.zeros((max(sizes), length), np.uint8)
    for first in range(0, len(reader), len(rows)):  # now the files are in the page cache, and the memory in the process
        places = np.arange(first, min(first + len(rows), len(reader)))
        reader.read_into(places, rows[: len(places)])
    rng = np.random.default_rng(0)
    took: dict[str, list[float]] = {}
    for size in sizes:
        for _ in range(INSTANCES):
            places = np.sort(rng.permutation(len(reader))[:size])
            began = time.perf_counter()
            reader.read_into(places, rows[:size])
            took.setdefault(str(size), []).append(round(1000 * (time.perf_counter() - began), 3))
    return {"records": [float(len(reader))], **took}


def _steps(options: Options) -> Steps:
    for name in SETS:
        yield name, partial(apart, sample_ms, options, name)


def _table(values: Values) -> str:
    rows = []
    for size in SIZES:
        found = [values[name].get(str(size)) for name in values]
        if any(found):
            rows.append([f"{size:,}", *("" if each is None else spread(each) for each in found)])
    names = [f"{SETS[name]}, of {values[name]['records'][0]:,.0f}: ms" for name in values]
    return markdown(["records of a sample", *names], rows)


def _draw(values: Values) -> Figure:
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    for (name, found), colour in zip(values.items(), ("#2a7f62", "#c8553d"), strict=False):
        sizes = [size for size in SIZES if str(size) in found]
        for instance in range(INSTANCES):
            label = SETS[name] if instance == 0 else None
            axes.plot(sizes, [found[str(size)][instance] for size in sizes], "o", ms=3, color=colour, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("records of a sample")
    axes.set_ylabel("ms")
    axes.legend()
    return figure


PART = Part("samples", "time to read a sample, by its size", _steps, _table, _draw, quiet=True,
            uses=("images", "photos"), needs=("images", "photos"))  # fmt: skip

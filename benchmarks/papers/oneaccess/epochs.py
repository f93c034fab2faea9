"""Its Tables 5 and 7, Figures 8 and 11: an epoch of batches, by ESSP, by PyTorch's `DataLoader`, and by other loaders.

A round of a library is a process of its own, in which `essp.Records` takes an epoch first: ratios are to that one.
Files are in the page cache. Peers are measured where they are installed (`pip install webdataset litdata
mosaicml-streaming`), tf.data in the environment of `--tensorflow`; `--resume` adds those that have become available.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.image_epochs import (
    Loops,
    batch_ms,
    decode_cpu_s,
    in_turn,
    peer_loops,
    photo_loops,
    records_of,
    small_loops,
)
from benchmarks.image_peers import NAMES, Photos, installed, version_of
from benchmarks.image_sets import CROP, written_by
from benchmarks.papers.document import markdown, number, spread
from benchmarks.papers.machine import apart
from benchmarks.papers.oneaccess.pictures import cifar, large, large_records
from benchmarks.papers.study import Options, Part, Steps, Values

BATCHES = (4, 32)
SAMPLES = {4: (500, 1000), 32: (500,)}
"""Size of a batch -> sizes of samples, in batches; of 32, a thousand batches are more than half of CIFAR-10."""
LARGE_BATCH = 32
WORKERS = (1, 2, 4)
EVERY = 50
"""Batches that a point of Figure 8 stands for."""
TF_DATA = Path(__file__).with_name("tf_data.py")
PAPER_CIFAR = {
    ".jpg files, 1 worker": "4.02",
    "records, samples of 500 batches": "4.01",
    "records, samples of 1000 batches": "2.72",
}
"""Loader -> seconds, in batches of 4."""
PAPER_LARGE = {"files, 1 worker": "23", "files, 2 workers": "12", "files, 4 workers": "6.8", "records, pixels": "6.4"}
"""Loader -> minutes."""
FIGURE8 = (".jpg files, 1 worker", "records, samples of 500 batches", "records, samples of 1000 batches", "records")
FIGURE11 = ("files, 1 worker", "records, JPEG", "records, pixels")
COLOURS = ("#c8553d", "#d9a441", "#1f4e79", "#2a7f62")


def small_epochs(options: Options, library: str, batch: int) -> dict[str, Any]:
    """Loader -> seconds of an epoch over CIFAR-10, and processor seconds."""
    images = cifar(options)
    loops: Loops = {"records": partial(records_of, images.records, batch)}
    if library == "torch":
        loops = small_loops(images, batch, SAMPLES[batch])
    elif library != "tensorflow":
        written_by(library, images)
        loops |= peer_loops(library, images, batch)
    found: dict[str, Any] = {"epochs": _rounded(in_turn(loops))}
    if library == "tensorflow":
        record_file = images.folder / "pixels.tfrecord"
        _add(found, "tf.data, TFRecords", options, "tfrecord", images.pixels, record_file, batch)
        _add(found, "tf.data, JPEG files", options, "jpeg", images.files, 32, batch)
    elif library != "torch":
        found["version"] = version_of(library)
    return found


def large_epochs(options: Options, library: str) -> dict[str, Any]:
    """The same over the photographs, in batches of 32."""
    raw, keep, folder = large_records(options, "raw"), large_records(options, "keep"), large(options)
    photos = Photos(folder, len(list(folder.iterdir())))
    loops = photo_loops(raw, keep, photos, WORKERS if library == "torch" else (), LARGE_BATCH)
    if library == "torch":
        loops["records, pixels, all in memory"] = partial(records_of, raw, LARGE_BATCH, memory="5GiB")
    else:
        del loops["records, JPEG"]
    found: dict[str, Any] = {"epochs": _rounded(in_turn(loops))}
    if library == "tensorflow":
        _add(found, "tf.data, JPEG files", options, "jpeg", folder, CROP, LARGE_BATCH)
    return found


def _rounded(took: dict[str, tuple[float, float]]) -> dict[str, dict[str, float]]:
    return {name: {"s": round(wall, 4), "cpu_s": round(cpu, 3)} for name, (wall, cpu) in took.items()}


def _add(found: dict[str, Any], name: str, options: Options, *arguments: object) -> None:
    """An epoch of tf.data, by the Python of its own environment."""
    assert options.tensorflow is not None
    command = [str(options.tensorflow), "-P", str(TF_DATA), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    took = json.loads(done.stdout.splitlines()[-1])
    found["epochs"][name] = {"s": round(took["s"], 4), "cpu_s": round(took["cpu_s"], 3)}
    found["version"] = took["version"]


def each_batch(options: Options, name: str) -> dict[str, Any]:
    """The time to each batch of an epoch: of `every` in a row, the median and the longest."""
    if name in FIGURE11:
        folder = large(options)
        photos = Photos(folder, len(list(folder.iterdir())))
        raw, keep = large_records(options, "raw"), large_records(options, "keep")
        took, every = batch_ms(photo_loops(raw, keep, photos, (1,), LARGE_BATCH)[name]), 1
    else:
        took, every = batch_ms(small_loops(cifar(options), 4, SAMPLES[4])[name]), EVERY
    groups = [took[begin : begin + every] for begin in range(0, len(took), every)]
    slowest = [round(max(group), 3) for group in groups]
    middle = {} if every == 1 else {"medians_ms": [round(statistics.median(group), 4) for group in groups]}
    return {"every": every, "batches": len(took), "slowest_ms": slowest, **middle}


def _cifar_steps(options: Options) -> Steps:
    libraries = ["torch", *installed(), *(["tensorflow"] if options.tensorflow else [])]
    for turn in range(options.rounds):
        for library in libraries:
            for batch in BATCHES:
                yield f"{library}.{batch}.{turn}", partial(apart, small_epochs, options, library, batch)
    for name in FIGURE8:
        yield name, partial(apart, each_batch, options, name)


def _large_steps(options: Options) -> Steps:
    for turn in range(options.rounds):
        for library in ("torch", *(["tensorflow"] if options.tensorflow else [])):
            yield f"{library}.{turn}", partial(apart, large_epochs, options, library)
    for name in FIGURE11:
        yield name, partial(apart, each_batch, options, name)
    yield "decoding", partial(apart, decoding, options)


def decoding(options: Options) -> dict[str, float]:
    """Processor time to decode and scale all photographs, and nothing else."""
    photos = sorted(large(options).iterdir())
    return {"cpu_s": round(decode_cpu_s(photos), 3), "mean_kb": _mean_kb(photos)}


def _mean_kb(photos: list[Path]) -> float:
    return round(sum(path.stat().st_size for path in photos) / len(photos) / 1000, 1)


Cells = tuple[str, str, str]


def _rows(values: Values, batch: str = "") -> dict[str, Cells]:
    """Loader -> seconds, processor seconds, and the ratio to the first loader of its step."""
    times: dict[str, list[tuple[float, float, float]]] = {}
    for key, value in values.items():
        if "epochs" not in value or (batch and key.split(".")[1] != batch):
            continue
        first = next(iter(value["epochs"].values()))["s"]
        for name, took in value["epochs"].items():
            if name not in ("records", "records, pixels") or key.startswith("torch."):
                times.setdefault(name, []).append((took["s"], took["cpu_s"], took["s"] / first))
    return {name: _cells(each) for name, each in times.items()}


def _cells(each: list[tuple[float, float, float]]) -> Cells:
    walls, cpus, ratios = zip(*each, strict=True)
    return spread(list(walls)), number(statistics.median(cpus)), number(statistics.median(ratios))


def _cifar_table(values: Values) -> str:
    by_batch = {batch: _rows(values, str(batch)) for batch in BATCHES}
    names = list(dict.fromkeys(name for rows in by_batch.values() for name in rows))
    nothing = ("", "", "")
    rows = [
        [_titled(name), *by_batch[4].get(name, nothing), *by_batch[32].get(name, nothing), PAPER_CIFAR.get(name, "")]
        for name in names
    ]
    head = ["loader", *(text for batch in BATCHES for text in (f"batches of {batch}: s", "CPU s", "time / records"))]
    return markdown([*head, "the paper, batches of 4: s"], rows) + _versions(values, (*NAMES, "tensorflow"))


def _large_table(values: Values) -> str:
    rows = [[_titled(name), *cells, PAPER_LARGE.get(name, "")] for name, cells in _rows(values).items()]
    text = markdown(["loader", "s", "CPU s", "time / records of pixels", "the paper, 118,000 images: minutes"], rows)
    if "decoding" in values:
        found = values["decoding"]
        text += f"\n\nDecoding and scaling these photographs (of {found['mean_kb']:.0f} kB on average), and nothing "
        text += f"else, takes {found['cpu_s']:.0f} s of processor time."
    return text + _versions(values, ("tensorflow",))


def _versions(values: Values, libraries: tuple[str, ...]) -> str:
    """What was measured of other libraries, and what was not."""
    found = {key.split(".")[0]: value["version"] for key, value in values.items() if "version" in value}
    there = [f"{name} {found[name]}" for name in libraries if name in found]
    lacking = [name for name in libraries if name not in found]
    text = f"Peers: {', '.join(there)}. " if there else ""
    text += f"Not measured yet: {', '.join(lacking)}." if lacking else ""
    return f"\n\n{text.strip()}" if text else ""


def _titled(name: str) -> str:
    name = name.replace(".jpg", "JPEG")
    if name.startswith("records"):
        return f"`essp.Records`{name.removeprefix('records')}"
    return f"`DataLoader`, {name}" if " files, " in f" {name}" and "tf.data" not in name else name


def _draw(names: tuple[str, ...], values: Values) -> Figure | None:
    """The time to each batch; on a logarithmic scale, as in the paper."""
    if not any(name in values for name in names):
        return None
    figure = Figure(figsize=(8.5, 3.4), layout="constrained")
    axes: Any = figure.subplots()
    for name, colour in zip(names, COLOURS[-len(names) :], strict=True):
        if (found := values.get(name)) is None:
            continue
        places = [number * found["every"] for number in range(len(found["slowest_ms"]))]
        axes.plot(places, found["slowest_ms"], color=colour, linewidth=0.8, label=_titled(name).replace("`", ""))
        if "medians_ms" in found:
            axes.plot(places, found["medians_ms"], ":", color=colour, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("batch")
    axes.set_ylabel("ms")
    figure.legend(loc="outside upper center", ncols=4, fontsize=7)
    return figure


CIFAR_PART = Part("cifar_epoch", "time to each batch of an epoch, CIFAR-10", _cifar_steps, _cifar_table,
                  partial(_draw, FIGURE8), quiet=True, uses=("rounds", "images"), needs=("images",))  # fmt: skip
LARGE_PART = Part("large_epoch", "time to each batch of an epoch, photographs", _large_steps, _large_table,
                  partial(_draw, FIGURE11), quiet=True, uses=("rounds", "photos"), needs=("photos",))  # fmt: skip

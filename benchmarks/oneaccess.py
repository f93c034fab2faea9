"""`python -m benchmarks.oneaccess`: the experiments of the OneAccess paper, with peers that it did not have.

    cifar     an epoch over small images in batches of 4 and 32: records, files, and the peers (its tables 5, figure 8)
    samples   the time to read a sample, by its size (figures 7 and 10)
    coco      an epoch over photographs, cropped to 224x224, in batches of 32 (table 7, figure 11)
    compute   how long a training waits for data and how long it computes, ResNet-18 and ResNet-152 (tables 1 to 4)

Prints a table, and writes `oneaccess.json` and `oneaccess.png` to `--results`. Each loader runs an epoch in turn,
`--rounds` times; the best time of each counts, and ratios are medians over the rounds. Files are in the page cache.
`records_coco` is a figure of `make bench`. docs/oneaccess.md has a run beside the paper's numbers.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

import essp
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.image_peers import Photos, installed, missing, peer_loader, torch_loader
from benchmarks.image_sets import CROP, ImageSet, written_by
from benchmarks.measure import spread
from benchmarks.records import Files
from essp.records.images import covering, decoded
from essp_common.objects.directory import DirectoryStore
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.runtime.process import cpu_count
from essp_engine.learning.networks import network

RESULTS = Path(__file__).with_name("results")
_SIZES = (1, 10, 100, 1000, 10_000, 50_000)
_INSTANCES = 10
_MANY = 1000
_RECORD_BYTES = 3072
_STEPS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """What one loader took."""

    experiment: str
    what: str
    best_s: float
    cpu_s: float
    """Processor time of the best round, worker processes included."""
    over_records: float
    """Median over the rounds: time / that of the first loader of the experiment."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How long samples of one size took to read."""

    data: str
    size: int
    median_ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True)
class Step:
    """Which loop over which data, and the seconds of one of its steps."""

    data: str
    model: str
    loader: str
    data_s: float
    compute_s: float


Loops = dict[str, Callable[[], Iterable[Any]]]


def records_coco(scale: Scale) -> Iterator[Figure]:
    """Photographs in batches of 32: `DataLoader` with one worker against records of pixels, and of JPEG files."""
    count = 40 if scale.quick else 1000
    images = ImageSet(scale.root / f"photos_{count}", count)
    took = _rounds(_coco(images, (1,)), scale.rounds)
    peer, raw, files = took["files, 1 worker"], took["records, pixels"], took["records, JPEG"]
    detail: dict[str, float | str] = {f"{name}_s": round(min(wall(times)), 3) for name, times in took.items()}
    yield Figure.of("records_coco", _ratio(peer, raw), Aim(least=3.6), detail)
    share = _decode_cpu_s(images) / min(cpu for _, cpu in files)
    binds: dict[str, float | str] = {"share_of_cpu_time_that_is_decoding": round(share, 2)}
    yield Figure.of("records_coco_jpeg", _ratio(peer, files), None, binds)


Times = Sequence[tuple[float, float]]
"""Wall and processor seconds, round by round."""


def wall(times: Times) -> list[float]:
    """The first of each."""
    return [seconds for seconds, _ in times]


def _ratio(over: Times, under: Times) -> Any:
    return spread([a / b for a, b in zip(wall(over), wall(under), strict=True)])


def _records(path: Path, batch_size: int, size: int | None = None, memory: int | str = "1GiB") -> essp.Records:
    return essp.Records(path, batch_size=batch_size, size=size, memory=memory)


def _cifar(images: ImageSet, batch_size: int) -> Loops:
    files = images.files
    loops: Loops = {"records": partial(_records, images.records, batch_size)}
    for relative in (100, 400):
        if 2 * relative * batch_size < images.count:
            memory = 2 * relative * batch_size * _RECORD_BYTES
            loops[f"records, sample of {relative} batches"] = partial(
                _records, images.records, batch_size, memory=memory
            )
    for suffix in (".npy", ".jpg"):
        for workers in (0, 1, 2):
            name = f"{suffix} files, {workers} worker{'s' * (workers != 1)}"
            loops[name] = partial(torch_loader, Files(files, suffix), batch_size, workers)
    for name in installed():
        written_by(name, images)
        for workers in (0, 1):
            label = f"{name}, {workers} worker{'s' * (workers != 1)}"
            loops[label] = partial(peer_loader, name, images, batch_size, workers)
    return loops


def _coco(images: ImageSet, workers: Sequence[int], batch_size: int = 32) -> Loops:
    loops: Loops = {
        "records, pixels": partial(_records, images.photo_records("raw"), batch_size),
        "records, JPEG": partial(_records, images.photo_records("jpeg"), batch_size, CROP),
    }
    photos = Photos(images.photos, images.count)
    for number in workers:
        name = f"files, {number} worker{'s' * (number != 1)}"
        loops[name] = partial(torch_loader, photos, batch_size, number)
    return loops


def _rounds(loops: Loops, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """An epoch of each in turn, after one of records that warms up."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
    _timed(next(iter(loops.values())))
    for _ in range(rounds):
        for name, make in loops.items():
            took[name].append(_timed(make))
    return took


def _timed(make: Callable[[], Iterable[Any]]) -> tuple[float, float]:
    began, cpu = time.perf_counter(), _cpu_s()
    loader = make()
    for _ in loader:
        pass
    if isinstance(loader, essp.Records):
        loader.close()
    del loader
    return time.perf_counter() - began, _cpu_s() - cpu


def _cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _rows(experiment: str, took: dict[str, list[tuple[float, float]]]) -> list[Row]:
    first = next(iter(took.values()))
    rows = []
    for name, times in took.items():
        best, cpu = min(times)
        rows.append(Row(experiment, name, round(best, 4), round(cpu, 4), round(_ratio(times, first).median, 2)))
    return rows


def _decode_cpu_s(images: ImageSet) -> float:
    """Processor time of decoding and scaling the photographs of an epoch, and nothing else."""
    data = [path.read_bytes() for path in sorted(images.photos.glob("*.jpg"))]
    took = []
    for _ in range(2):
        began = _cpu_s()
        for number in range(images.count):
            covering(decoded(data[number % len(data)]), CROP, CROP)
        took.append(_cpu_s() - began)
    return min(took)


def _samples(name: str, path: Path) -> Iterator[Sample]:
    reader = RecordReader(DataSet(DirectoryStore.from_url(path.absolute().as_uri())))
    shape = reader.shape
    assert shape is not None
    rng = np.random.default_rng(0)
    for size in [size for size in _SIZES if size <= len(reader)]:
        took = []
        for _ in range(_INSTANCES):
            rows = np.empty((size, int(np.prod(shape))), np.uint8)
            began = time.perf_counter()
            reader.read_into(np.sort(rng.permutation(len(reader))[:size]), rows)
            took.append(1000 * (time.perf_counter() - began))
        yield Sample(name, size, round(statistics.median(took), 3), round(min(took), 3), round(max(took), 3))


def _iterations(make: Callable[[], Iterable[Any]]) -> list[float]:
    """Milliseconds until each batch of an epoch."""
    took: list[float] = []
    loader = make()
    batches = iter(loader)
    while True:
        began = time.perf_counter()
        if next(batches, None) is None:
            return took
        took.append(round(1000 * (time.perf_counter() - began), 4))


def _steps(name: str, model_name: str, loops: Loops) -> Iterator[Step]:
    """Medians of the steps of a loop that trains; of each, how long it waits for a batch, and how long it computes."""
    model = network(model_name).make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for loader_name, make in loops.items():
        loader = make()
        batches = iter(loader)
        waits, computes = [], []
        for _ in range(_STEPS):
            began = time.perf_counter()
            batch = next(batches)
            got = time.perf_counter()
            frames, labels = (batch.frames[:, 0], batch.labels) if isinstance(batch, essp.Batch) else batch
            output = model(frames.permute(0, 3, 1, 2) / 255)
            loss = torch.nn.functional.cross_entropy(output, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            waits.append(got - began)
            computes.append(time.perf_counter() - got)
        if isinstance(loader, essp.Records):
            loader.close()
        middle = [statistics.median(values[1:]) for values in (waits, computes)]
        yield Step(name, model_name, loader_name, round(middle[0], 5), round(middle[1], 4))


def main(
    images: Annotated[str, typer.Option(help="Small images, a folder or archive; default: made up.")] = "",
    within: Annotated[str, typer.Option(help="Which folder of it, as in train.")] = "",
    photos: Annotated[str, typer.Option(help="Photographs, a folder or archive; default: made up.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="cifar, samples, coco, compute; may be repeated.")] = None,
    count: Annotated[int, typer.Option(help="Small images; an eighth as many photographs.", min=16)] = 8000,
    rounds: Annotated[int, typer.Option(help="How often each is measured.", min=1)] = 3,
    folder: Annotated[Path, typer.Option(help="Where the images are kept.")] = RESULTS / "oneaccess",
    results: Annotated[Path, typer.Option(help="Where the results are written.")] = RESULTS,
) -> None:
    """Measure, print a table as it comes, write JSON and a plot."""
    from benchmarks.oneaccess_plot import draw

    small = ImageSet(folder / f"small_{count}{'_given' * bool(images)}", count, images, within)
    large = ImageSet(folder / f"photos_{count // 8}{'_given' * bool(photos)}", count // 8, photos)
    many = ImageSet(folder / "small_50000", _SIZES[-1]) if count >= _MANY else small
    experiments = {
        "cifar": partial(_cifar_experiment, small, rounds),
        "coco": partial(_coco_experiment, large, rounds),
        "samples": partial(_samples_experiment, many, large),
        "compute": partial(_compute_experiment, small, large),
    }
    found: dict[str, Any] = {"rows": [], "samples": [], "steps": []}
    found |= {"count": count, "rounds": rounds, "cpus": cpu_count(), "missing": missing(), "load": {}}
    results.mkdir(parents=True, exist_ok=True)
    for name in only or experiments:
        experiments[name](found)
        found["load"][name] = os.getloadavg()[0]
        (results / "oneaccess.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for sentence in found["missing"]:
        print(sentence)
    draw(found, results / "oneaccess.png")


def _cifar_experiment(images: ImageSet, rounds: int, found: dict[str, Any]) -> None:
    for batch_size in (4, 32):
        _tell(_rows(f"cifar, batches of {batch_size}", _rounds(_cifar(images, batch_size), rounds)), found["rows"])
    found["iterations_ms"] = {
        name: _iterations(make)
        for name, make in _cifar(images, 4).items()
        if "worker" not in name or name == ".jpg files, 1 worker"
    }


def _coco_experiment(images: ImageSet, rounds: int, found: dict[str, Any]) -> None:
    _tell(_rows("coco, batches of 32", _rounds(_coco(images, (0, 1, 2, 4)), rounds)), found["rows"])
    found["decode_cpu_s"] = round(_decode_cpu_s(images), 3)
    print(f"decoding and scaling the photographs alone: {found['decode_cpu_s']} s cpu")


def _samples_experiment(small: ImageSet, large: ImageSet, found: dict[str, Any]) -> None:
    _tell(_samples("32x32", small.records), found["samples"])
    _tell(_samples("224x224", large.photo_records("raw")), found["samples"])


def _compute_experiment(small: ImageSet, large: ImageSet, found: dict[str, Any]) -> None:
    files = partial(torch_loader, Files(small.files, ".jpg"), 8, 0)
    cifar: Loops = {"records": partial(_records, small.records, 8), ".jpg files, 0 workers": files}
    coco = _coco(large, (0,), 2)
    del coco["records, JPEG"]
    for model in ("resnet18", "resnet152"):
        _tell(_steps("cifar, batches of 8", model, cifar), found["steps"])
        _tell(_steps("coco, batches of 2", model, coco), found["steps"])


def _tell(values: Iterable[Row | Sample | Step], into: list[Any]) -> None:
    """Print them, and keep them for the document."""
    for value in values:
        into.append(asdict(value))
        print(_line(value), flush=True)


def _line(value: Row | Sample | Step) -> str:
    if isinstance(value, Row):
        took = f"{value.best_s:9.3f} s, cpu {value.cpu_s:9.3f} s {value.over_records:8.2f}"
        return f"{value.experiment:22} {value.what:32} {took}"
    if isinstance(value, Sample):
        between = f"{value.low_ms:.2f} to {value.high_ms:.2f}"
        return f"sample {value.data:8} {value.size:6} {value.median_ms:9.2f} ms ({between})"
    what = f"{value.data:22} {value.model:10} {value.loader:24}"
    return f"{what} data {value.data_s:8.4f} s, compute {value.compute_s:7.3f} s"


if __name__ == "__main__":
    typer.run(main)

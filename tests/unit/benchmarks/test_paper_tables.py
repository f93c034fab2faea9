"""Tables of papers: what is compared with what, and that the first run is dropped. All are drawn from values alone."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.papers.__main__ import PAPERS
from benchmarks.papers.check_qzp.training import ratios
from benchmarks.papers.check_qzp.ways import WAYS
from benchmarks.papers.io import training as io_training
from benchmarks.papers.io.reading import THREADS

Made = dict[str, Any]


def waits() -> Made:
    one = {"waited_s": 0.5, "on_disk_s": 2.0, "bytes": 100, "in_memory": 400, "load_bytes_per_s": 10**6}
    return {f"resnet50/{way}/{number}": one | {"waited_s": 0.5 + (way == "none")} for way in WAYS for number in (0, 1)}


def stages() -> Made:
    cost = {stage: {"wall_s": 2.0, "cpu_s": 1.0} for stage in ("snapshot", "quantised", "gzip", "written")}
    sizes = {"memory": 400, "Z": 380, "Q.global": 100, "QZ.global": 10, "Q.channel": 101, "QZ.channel": 90}
    return {"resnet50/sizes": {"weights": sizes}, "resnet50/stages/0": cost}


def training() -> Made:
    """The machine becomes twice as slow from one round to the next."""
    return {
        f"resnet50/{name}/{number}": {"seconds": slow * seconds, "waited_s": 0.1, "last_s": 0.2, "written": 5}
        for number, slow in enumerate((1.0, 2.0))
        for name, seconds in (("without", 10.0), ("none", 11.0), ("QZP.channel", 10.2), ("essp", 10.1))
    }


def written() -> Made:
    one = {"written": 80, "in_memory": 100, "accuracy": 0.5, "resumed": 0.6}
    return {"none": one | {"written": 160}, "QZ.channel": one, "essp": one | {"accuracy": None, "resumed": None}}


def reading() -> Made:
    def rates(first: float) -> Made:
        one = {"bytes_per_s": 1.0, "cpu_cores": 0.5, "other_cores": 0.0}
        return {"median_bytes": 112_000.0} | {
            f"{pipeline}.{threads}": one | {"samples_per_s": first * threads}
            for pipeline in ("full", "read", "raw")
            for threads in THREADS
        }

    return {
        f"{device}/{number}": rates(1000.0 if not number else 100.0) for device in ("hdd", "ssd") for number in (0, 1)
    }


def objects() -> Made:
    return {"s3/0": reading()["hdd/0"] | {name: {"samples_per_s": 9.0} for name in ("records.first", "records.second")}}


def machines() -> Made:
    return {
        f"{kind}.{processes}/{number}": {"images_per_s": 250.0 * processes * (2 if not number else 1)}
        for kind in ("full", "read")
        for processes in (1, 2, 4)
        for number in (0, 1, 2)
    }


def prefetch() -> Made:
    def one(device: str) -> Made:
        seconds = {f"{ahead}.{threads}": {"seconds": 80.0} for ahead in (0, 1) for threads in io_training.THREADS}
        return {"median_bytes": 12_000.0} | seconds | {"0.1": {"seconds": 120.0 if device == "hdd" else 100.0}}

    return {f"{device}/{number}": one(device) for device in io_training.DEVICES for number in (0, 1)}


def batches() -> Made:
    one = {f"{ahead}.{batch}": {"seconds": 30.0} for ahead in (0, 1) for batch in io_training.SIZES}
    return {f"{device}/0": one for device in ("hdd", "lustre")}


def devices() -> Made:
    ways = {"hdd.none": 30.0, "hdd.direct": 75.0, "ssd.direct": 60.0, "hdd.burst": 30.0}
    return {f"{way}/0": {"training_s": seconds, "held_s": 1.0, "drained_s": 0.5} for way, seconds in ways.items()}


def per_frame() -> Made:
    return {
        f"overlapped.{what}.{number}": {"clip": ms}
        for what, ms in (("data", 50.0), ("network", 1000.0), ("both", 1020.0))
        for number in (0, 1)
    }


def folds() -> Made:
    top1 = {"rgb-1": 0.5, "flow-10": 0.5, "two-mean": 1.0, "all-product": 0.75, "fused": 0.5}
    return {f"scratch.set1.{fold}": {"videos": 6, "top1": top1, "strategy": "best"} for fold in (1, 2)}


MADE: dict[tuple[str, str], Made] = {
    ("essp", "per_frame"): per_frame(),
    ("essp", "folds"): folds(),
    ("check-qzp", "waits"): waits(),
    ("check-qzp", "stages"): stages(),
    ("check-qzp", "training"): training(),
    ("check-qzp", "bytes"): written(),
    ("io", "reading"): reading(),
    ("io", "objects"): objects(),
    ("io", "machines"): machines(),
    ("io", "prefetch"): prefetch(),
    ("io", "batches"): batches(),
    ("io", "read_over_time"): {"hdd.0": [[0.5, 2.0], [1.0, 0.0]], "hdd.1": [[0.5, 2.0]]},
    ("io", "writing"): {"memory/0": {"written": 900.0, "read": 2000.0, "checkpoint": 300.0}},
    ("io", "devices"): devices(),
    ("io", "written_over_time"): {"hdd.direct": {"training_s": 9.0, "writes": [[1.0, 3.0, 10**6]]}},
}
SAID = {
    ("essp", "per_frame"): "takes 1.02 (1.02 to 1.02) times the network's step alone",
    ("essp", "folds"): "gains 25.0 ± 0.0 points, fold by fold, on the best single one (one frame)",
    ("check-qzp", "waits"): "| P | 0.5 (0.5 to 0.5) | 33.3 % |",
    ("check-qzp", "stages"): "| resnet50 | weights | 400 B | 95.0 % |",
    ("check-qzp", "training"): "1.020 (1.020 to 1.020)",
    ("check-qzp", "bytes"): "| ESSP's default | 80 B | 50.0 % | exact | exact |",
    ("io", "reading"): "| full | 2 | 200 [2.00, paper 1.65] | 200 [2.00] |",
    ("io", "objects"): "| epoch 2, from the disk |  | 9 |",
    ("io", "machines"): "| read | 2 | 500 (500 to 500) | 2.00 |",
    ("io", "prefetch"): "differ by up to 50.0 %; with one batch ahead, by up to 0.0 %",
    ("io", "batches"): "| 128 | 30 | 30 |",
    ("io", "read_over_time"): "| hdd | none | 1.0 | 50 % |",
    ("io", "writing"): "| memory | 900 | 2,000 | 300 |",
    ("io", "devices"): "2.50 times as fast as direct checkpoints",
    ("io", "written_over_time"): "| direct | 9.0 | 3.0 | 1 |",
}


@pytest.mark.parametrize(("paper", "name"), list(MADE))
def test_a_table_and_a_figure_come_from_values(paper: str, name: str) -> None:
    part = PAPERS[paper][name]
    assert SAID[paper, name] in part.table(MADE[paper, name])
    part.draw(MADE[paper, name])


def test_every_part_of_these_pages_is_tried() -> None:
    assert set(MADE) >= {(paper, name) for paper in ("check-qzp", "io") for name in PAPERS[paper]}


def test_a_training_is_compared_with_that_of_its_own_round() -> None:
    assert ratios(training(), "resnet50", "none") == pytest.approx([1.1, 1.1])

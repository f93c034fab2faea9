"""What saving a network takes: snapshot, quantisation, gzip, writing (the paper's Figure 5), and the bytes of weights,
momentum and gradients in each encoding (Figure 4).

Each stage runs alone, on one core, by the code that packs a trainer's checkpoints. Quantisation includes the check that
every number is restored within its bound; `written` is a write of the rounded and compressed file with `fsync`. The
paper's networks are Faster R-CNN with ResNet50 and with ResNet152. Weights are random, momentum and gradients those of
three steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from matplotlib.figure import Figure

from benchmarks.disk_load import loaded
from benchmarks.image_training import MODEL, OPTIMIZER
from benchmarks.papers.check_qzp.waits import JOBS
from benchmarks.papers.check_qzp.ways import GRADIENTS, WAYS, Loop, Tensors, Way, size_of
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp_common.quantities import percent, size
from essp_common.tensors.packed import Array, pack
from essp_trainer.checkpoints.state_memory import StateMemory

NETWORKS = ("resnet50", "resnet152", "fasterrcnn_resnet50", "fasterrcnn_resnet152")
STAGES = ("snapshot", "quantised", "gzip", "written")
T = TypeVar("T")
_SIZED = ("Z", "Q.global", "QZ.global", "Q.channel", "QZ.channel")
_KINDS = {MODEL: "weights", OPTIMIZER: "momentum", GRADIENTS: "gradients"}


def stages(network: str, folder: Path, quick: bool) -> dict[str, dict[str, float]]:
    """Seconds of each stage, by channel, of weights and momentum."""
    state = _state(network, quick)
    tensors: Tensors = {file: state[file] for file in (MODEL, OPTIMIZER)}
    memory = StateMemory()
    try:
        memory.reserve(size_of(tensors))
        memory.take(tensors, ())
        memory.wait()  # the first one lays the memory out
        snapshot, _ = _cost(lambda: _snapshot(memory, tensors))
        arrays = memory.arrays()
        quantised, _ = _cost(lambda: _packed(arrays, Way("Q")))
        both, files = _cost(lambda: _packed(arrays, Way("QZ")))
    finally:
        memory.close()
    compressed = {unit: both[unit] - quantised[unit] for unit in both}
    with TemporaryDirectory(dir=folder) as temporary, loaded(Path(temporary), jobs=2 if quick else JOBS):
        written, _ = _cost(lambda: _write(Path(temporary) / "file", files))
    found = zip(STAGES, (snapshot, quantised, compressed, written), strict=True)
    return {stage: {unit: round(value, 3) for unit, value in one.items()} for stage, one in found}


def sizes(network: str, quick: bool) -> dict[str, dict[str, int]]:
    """Bytes of weights, momentum and gradients: in memory, and in each encoding."""
    found = {}
    for file, tensors in _state(network, quick).items():
        arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
        found[_KINDS[file]] = {"memory": sum(array.nbytes for array in arrays.values())} | {
            name: sum(map(len, _packed({file: arrays}, WAYS[name]))) for name in _SIZED
        }
    return found


def _state(network: str, quick: bool) -> dict[str, Mapping[str, Any]]:
    loop = Loop(network)
    for _ in range(1 if quick else 3):
        loop.step()
    return {**loop.tensors(), GRADIENTS: loop.gradients()}


def _snapshot(memory: StateMemory, tensors: Tensors) -> None:
    memory.take(tensors, ())
    memory.wait()


def _packed(files: Mapping[str, Mapping[str, Array]], way: Way) -> list[bytes]:
    packing = way.packing
    assert packing is not None
    return [pack(arrays, packing) for arrays in files.values()]


def _cost(work: Callable[[], T]) -> tuple[dict[str, float], T]:
    began = time.perf_counter(), time.process_time()
    made = work()
    return {"wall_s": time.perf_counter() - began[0], "cpu_s": time.process_time() - began[1]}, made


def _write(path: Path, files: list[bytes]) -> None:
    with open(path, "wb") as target:
        for data in files:
            target.write(data)
        target.flush()
        os.fsync(target.fileno())


def _steps(options: Options) -> Steps:
    folder = options.work / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for network in NETWORKS[:1] if options.quick else NETWORKS:
        yield f"{network}/sizes", partial(apart, sizes, network, options.quick)
        for number in range(options.rounds):
            yield f"{network}/stages/{number}", partial(apart, stages, network, folder, options.quick)


def _networks(values: Values) -> list[str]:
    return list(dict.fromkeys(key.partition("/")[0] for key in values))


def _found(values: Values, network: str, stage: str, unit: str) -> list[float]:
    return [value[stage][unit] for key, value in values.items() if key.startswith(f"{network}/stages/")]


def _table(values: Values) -> str:
    seconds, bytes_ = [], []
    for network in _networks(values):
        for unit, title in (("cpu_s", "CPU"), ("wall_s", "clock")):
            cells = [_found(values, network, stage, unit) for stage in STAGES]
            if all(cells):
                seconds.append([network, title, *map(spread, cells)])
        for kind, found in values.get(f"{network}/sizes", {}).items():
            shares = [percent(found[name] / found["memory"], 1) for name in _SIZED]
            bytes_.append([network, kind, size(found["memory"]), *shares])
    head = ["seconds", "by", "snapshot", "quantised, by channel", "gzip", "written, with `fsync`"]
    sizes_head = ["bytes", "of", "in memory", "Z", "Q, one range", "QZ, one range", "Q, by channel", "QZ, by channel"]
    return markdown(head, seconds) + "\n\n" + markdown(sizes_head, bytes_)


def _draw(values: Values) -> Figure | None:
    networks = _networks(values)
    figure = Figure(figsize=(6.5, 2.6), layout="constrained")
    axes: Any = figure.subplots()
    for row, network in enumerate(networks):
        begin = 0.0
        for stage, colour in zip(STAGES, ("#2a7f62", "#7fb069", "#c8553d", "#888888"), strict=True):
            found = sorted(_found(values, network, stage, "cpu_s" if stage != "written" else "wall_s"))
            middle = found[len(found) // 2] if found else 0.0
            axes.barh(row, middle, left=begin, color=colour, label=stage if not row else None)
            begin += middle
    axes.set_yticks(range(len(networks)), networks)
    axes.invert_yaxis()
    axes.set_xlabel("CPU seconds; of writing: seconds by the clock")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


PART = Part("stages", "what saving a network takes, stage by stage", _steps, _table, _draw)

"""What checkpoints cost a whole training (the paper's Figure 6), and how many bytes a training writes.

`training`: the same steps with a checkpoint at the end of each epoch, saved in several ways, and without checkpoints,
under a loaded disk. Each round runs all of them, each in a process of its own, and each time is divided by that without
checkpoints of the same round. A training ends when its last checkpoint is on the disk.

`bytes`: EfficientNet-Lite0 continues from its ImageNet weights on made-up images (`image_training.py`) and is saved at
regular steps. It has real weights, so the sizes of its files are those of real checkpoints, and rounding has an effect:
accuracy of the weights in the last checkpoint, and after the same number of steps again from what was restored. All
ways train the same steps, so none of this depends on the machine's load.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.disk_load import loaded
from benchmarks.hogwild import made_up
from benchmarks.image_training import ImageTraining, State
from benchmarks.papers.check_qzp.waits import JOBS
from benchmarks.papers.check_qzp.ways import WAYS, Loop, Saving, Way, size_of
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp_common.quantities import percent, size
from essp_common.tensors.packed import unpack
from essp_engine.learning.models import arrays_of

WITHOUT = "without"
TRAINED = (WITHOUT, "none", "QZP.channel", "essp")
EPOCHS = 3
NETWORKS = {"resnet50": 100}
"""Network -> steps of an epoch."""
_WRITTEN = ("none", "Z", "Q.global", "QZ.global", "Q.channel", "QZ.channel", "essp")
_WARM, _SAVES, _BETWEEN = 80, 8, 10


def training(network: str, name: str, folder: Path, quick: bool) -> dict[str, float]:
    """Seconds of one training, and the bytes that it writes."""
    steps = 2 if quick else NETWORKS[network]
    with TemporaryDirectory(dir=folder) as temporary:
        loop, saving = Loop(network), None if name == WITHOUT else Saving(WAYS[name], Path(temporary))
        loop.step()
        try:
            if saving is not None:  # a training starts its child and its memory once, not once an epoch
                loop.save(saving)
                loop.step()
                saving.finish()
            saved = 0 if saving is None else len(saving.sizes)
            with loaded(Path(temporary), jobs=2 if quick else JOBS):
                loop.waited_s, began_s = 0.0, time.perf_counter()
                for _ in range(EPOCHS):
                    for _ in range(steps):
                        loop.step()
                    if saving is not None:
                        loop.save(saving)
                trained_s = time.perf_counter()
                if saving is not None:
                    saving.finish()
                ended_s = time.perf_counter()
        finally:
            if saving is not None:
                saving.close()
    return {
        "seconds": round(ended_s - began_s, 3),
        "waited_s": round(loop.waited_s, 3),
        "last_s": round(ended_s - trained_s, 3),
        "written": 0 if saving is None else sum(saving.sizes[saved:]),
    }


def written(name: str, quick: bool) -> dict[str, float | None]:
    """Bytes of all checkpoints of one training, and accuracies from its last one."""
    way, between = WAYS[name], 1 if quick else _BETWEEN
    train, test = (made_up(32, 0), made_up(25, 1)) if quick else (made_up(2000, 0), made_up(400, 1))
    learner = ImageTraining(*train)
    for _ in range(1 if quick else _WARM):
        learner.step()
    with TemporaryDirectory() as temporary:
        saving = Saving(way, Path(temporary))
        try:
            for _ in range(2 if quick else _SAVES):
                for _ in range(between):
                    learner.step()
                saving.save(learner.tensors(), [])
                saving.wait_for_copy()
            saving.finish()
        finally:
            saving.close()
        found: dict[str, float | None] = {
            "written": sum(saving.sizes),
            "in_memory": len(saving.sizes) * size_of(learner.tensors()),
            "accuracy": None,
            "resumed": None,
        }
        if (restored := _restored(way, Path(temporary), list(learner.tensors()))) is not None:
            resumed = ImageTraining(*train)
            resumed.load(restored, learner.steps)
            found["accuracy"] = resumed.accuracy(*test)
            for _ in range(between):
                resumed.step()
            found["resumed"] = resumed.accuracy(*test)
    return found


def _restored(way: Way, folder: Path, files: list[str]) -> State | None:
    """None: the file is a difference to one that was replaced."""
    if way.name == "essp":
        return None
    if way.packing is None:
        return {file: arrays_of(torch.load(folder / file)) for file in files}
    return {file: unpack((folder / file).read_bytes()) for file in files}


def _steps(options: Options) -> Steps:
    folder = options.work / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for network in NETWORKS:
        for number in range(options.rounds):
            begin = number % len(TRAINED)
            for name in TRAINED[begin:] + TRAINED[:begin]:
                yield f"{network}/{name}/{number}", partial(apart, training, network, name, folder, options.quick)


def _bytes_steps(options: Options) -> Steps:
    for name in _WRITTEN:
        yield name, partial(apart, written, name, options.quick)


def _title(name: str) -> str:
    return "without checkpoints" if name == WITHOUT else str(WAYS[name])


def _of(values: Values, network: str, name: str) -> dict[str, dict[str, float]]:
    """Round -> what was measured."""
    begin = f"{network}/{name}/"
    return {key.removeprefix(begin): value for key, value in values.items() if key.startswith(begin)}


def ratios(values: Values, network: str, name: str) -> list[float]:
    """The time of a training / without checkpoints, pair by pair."""
    without = _of(values, network, WITHOUT)
    return [
        value["seconds"] / without[number]["seconds"]
        for number, value in _of(values, network, name).items()
        if number in without
    ]


def _table(values: Values) -> str:
    rows = []
    for network in dict.fromkeys(key.partition("/")[0] for key in values):
        for name in TRAINED:
            if not (found := list(_of(values, network, name).values())):
                continue
            waited = [100 * one["waited_s"] / one["seconds"] for one in found]
            rows.append(
                [
                    network,
                    _title(name),
                    spread([one["seconds"] for one in found]),
                    "" if name == WITHOUT else spread(ratios(values, network, name), "{:.3f}"),
                    "" if name == WITHOUT else spread(waited),
                    "" if name == WITHOUT else spread([one["last_s"] for one in found]),
                    "" if name == WITHOUT else size(found[0]["written"]),
                ]
            )
    return markdown(
        ["network", "checkpoints", "training, s", "pairs: of that without", "waits, % of it",
         "the last one's wait, s", "bytes written"],
        rows,
    )  # fmt: skip


def _draw(values: Values) -> Figure | None:
    figure = Figure(figsize=(6.0, 2.6), layout="constrained")
    networks = list(dict.fromkeys(key.partition("/")[0] for key in values))
    panels: Any = figure.subplots(1, len(networks), sharex=True, squeeze=False)
    for axes, network in zip(panels[0], networks, strict=True):
        for row, name in enumerate(TRAINED[1:]):
            for ratio in ratios(values, network, name):
                axes.plot(ratio, row, "o", color="#2a7f62", alpha=0.7)
        axes.axvline(1, color="grey", linestyle="--")
        axes.set_yticks(range(len(TRAINED) - 1), [_title(name).replace("`", "") for name in TRAINED[1:]])
        axes.set_ylim(len(TRAINED) - 1.5, -0.5)
        axes.set_title(network)
        axes.set_xlabel("time / without checkpoints")
    return figure


def _bytes_table(values: Values) -> str:
    rows = []
    base = values["none"]["written"] if "none" in values else None
    for name, found in values.items():
        accuracies = ["exact" if found[each] is None else percent(found[each], 1) for each in ("accuracy", "resumed")]
        of_base = "" if base is None else percent(found["written"] / base, 1)
        rows.append([_title(name), size(found["written"]), of_base, *accuracies])
    head = ["checkpoints", "bytes written", "of `torch.save`", "accuracy of the last one", "resumed"]
    lacking = ", ".join(_title(name) for name in _WRITTEN if name not in values)
    return markdown(head, rows) + (f"\n\nNot measured yet: {lacking}." if lacking else "")


PART = Part("training", "what checkpoints cost a whole training", _steps, _table, _draw)
BYTES_PART = Part("bytes", "bytes that a training writes, and what rounding does to it", _bytes_steps, _bytes_table,
                  uses=())  # fmt: skip

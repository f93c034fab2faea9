"""How long training waits for a checkpoint in each combination of Q, Z and P, under a loaded disk (the paper's Figure
3), and how many bytes it has (Figure 4).

Each combination trains in a process of its own: a checkpoint, training, and a second checkpoint, which counts. With P,
training lasts longer than packing takes; else the second checkpoint would wait for the first one. Without P, all is
written when the call returns, so that a few steps are enough. Training waits in the call, and before its next update
while the state is being copied. `on the disk` is the time from the call until the file is flushed, which training does
not wait for where P is used. Only the last checkpoint of a training is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from benchmarks.disk_load import loaded
from benchmarks.papers.check_qzp.ways import WAYS, Loop, Saving, size_of
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp_common.quantities import percent, size

NETWORKS = {"resnet50": 20.0, "resnet152": 50.0}
"""Network -> seconds of training between two checkpoints with P, or more: until the first one is written."""
_WITHOUT_P_S = 2.0
_LARGE = {"resnet152": ("none", "P", "QZ.channel", "QZP.channel", "essp")}
"""Network -> its combinations, if not all."""
JOBS = 64
"""Of the load on the disk, as FIO's in the paper."""


def waits(network: str, way: str, folder: Path, quick: bool) -> dict[str, float]:
    """Seconds and bytes of one checkpoint."""
    with TemporaryDirectory(dir=folder) as temporary:
        root, loop = Path(temporary), Loop(network)
        loop.step()
        saving = Saving(WAYS[way], root)
        try:
            with loaded(root, jobs=2 if quick else JOBS) as done:
                loop.save(saving)
                began_s, before = time.perf_counter(), done.value
                loop.train(1.0 if quick else NETWORKS[network] if WAYS[way].parallel else _WITHOUT_P_S)
                while saving.busy:
                    loop.step()
                loaded_s, waited_s = time.perf_counter() - began_s, loop.waited_s
                written = done.value - before
                asked_s = loop.save(saving)
                loop.step()
                waited_s = loop.waited_s - waited_s
                saving.finish()
                on_disk_s = saving.ended_s - asked_s
        finally:
            saving.close()
    return {
        "waited_s": round(waited_s, 4),
        "on_disk_s": round(on_disk_s, 3),
        "bytes": saving.sizes[-1],
        "in_memory": size_of(loop.tensors()),
        "load_bytes_per_s": round(4096 * written / loaded_s),
    }


def _steps(options: Options) -> Steps:
    networks = list(NETWORKS)[:1] if options.quick else list(NETWORKS)
    folder = options.work / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    for network in networks:
        ways = _LARGE.get(network, tuple(WAYS))
        for number in range(options.rounds):
            begin = number * len(ways) // options.rounds  # what comes first in one round comes later in another
            for way in ways[begin:] + ways[:begin]:
                yield f"{network}/{way}/{number}", partial(apart, waits, network, way, folder, options.quick)


def found(values: Values, network: str, way: str, what: str) -> list[float]:
    """What was measured in each round."""
    return [value[what] for key, value in values.items() if key.rpartition("/")[0] == f"{network}/{way}"]


def _networks(values: Values) -> Sequence[str]:
    return list(dict.fromkeys(key.partition("/")[0] for key in values))


def _table(values: Values) -> str:
    texts = []
    for network in _networks(values):
        first = next(value for key, value in values.items() if key.startswith(f"{network}/"))
        rates = [value["load_bytes_per_s"] for key, value in values.items() if key.startswith(f"{network}/")]
        rows, base = [], found(values, network, "none", "waited_s")
        for name, way in WAYS.items():
            waited = found(values, network, name, "waited_s")
            if not waited:
                continue
            share = "" if not base else percent(median(waited) / median(base), 1)
            stored = found(values, network, name, "bytes")[0] / first["in_memory"]
            rows.append(
                [str(way), spread(waited), share, spread(found(values, network, name, "on_disk_s")), percent(stored, 1)]
            )
        texts.append(
            f"**{network}**, {size(first['in_memory'])} of weights and momentum in memory; with P, "
            f"{NETWORKS[network]:g} s of training or more between two checkpoints; meanwhile, the load moves "
            f"{size(min(rates))} to {size(max(rates))} a second in blocks of 4 KiB.\n\n"
            + markdown(["combination", "training waits, s", "of `torch.save`", "on the disk after, s", "bytes"], rows)
        )
    return "\n\n".join(texts)


def _draw(values: Values) -> Figure | None:
    networks = _networks(values)
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    panels: Any = figure.subplots(1, len(networks), sharey=True, squeeze=False)
    for axes, network in zip(panels[0], networks, strict=True):
        for row, name in enumerate(WAYS):
            for what, mark, colour in (("waited_s", "o", "#2a7f62"), ("on_disk_s", "|", "grey")):
                seconds = found(values, network, name, what)
                axes.plot(seconds, [row] * len(seconds), mark, color=colour, markersize=6 if mark == "o" else 9)
        axes.set_yticks(range(len(WAYS)), [str(way).replace("`", "") for way in WAYS.values()])
        axes.set_xscale("log")
        axes.set_xlabel("s; dot: training waits, line: on the disk")
        axes.set_title(network)
    panels[0][0].invert_yaxis()
    return figure


PART = Part("waits", "how long training waits for a checkpoint, and when that is on the disk", _steps, _table, _draw)

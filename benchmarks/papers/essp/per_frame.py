"""The paper's Table 4: the cost of decoding, flow and the network for one frame, each alone, and overlapped.

Alone, each runs in one thread, and processor time is measured. Overlapped, `essp.Loader` decodes in a child process and
computes flow in a thread, while the loop trains in one: without stalls, a clip takes as long as the slower of the two,
not as long as their sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks.papers.document import markdown, number, spread
from benchmarks.papers.essp.extracting import catalog_of
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp_common.catalog.file import read_catalog
from essp_common.wiring import Stores
from essp_engine.features import registry
from essp_engine.learning.networks import network

SIZE, CROP, LENGTH = 256, 224, 10
METHODS = ("dis", "farneback", "tvl1")
NETWORK = "resnet152"
PAPER = {"decode and flow": 40.0, "convolution": 1.0}
"""Milliseconds: one CPU core, and one Titan X."""
_BATCH = 4
_WARM, _AHEAD = 2, 4
"""Batches before the timed ones, which include the start; and after them, so that clips are made until the end."""


def _video(catalog: Path) -> Path:
    rows = read_catalog(*Stores(("file:///",)).resolve(f"file://{catalog}")).view("train").rows
    return Path(rows[0].uri.removeprefix("file://"))


def _timed(work: Callable[[], int]) -> float:
    """Milliseconds of processor time per item; `work` returns the number of items it has processed."""
    began_s = time.process_time()
    done = work()
    return round(1e3 * (time.process_time() - began_s) / done, 4)


def decoding(catalog: Path, quick: bool) -> dict[str, float]:
    """Decoding alone, by one thread; and with scaling to RGB of 256x256."""
    import av

    path = str(_video(catalog))

    def decode(scaled: bool) -> int:
        count = 0
        with av.open(path) as container:
            container.streams.video[0].thread_count = 1
            for frame in container.decode(video=0):
                if scaled:
                    frame.to_ndarray(width=SIZE, height=SIZE, format="rgb24")
                count += 1
        return count

    decode(True)
    return {"decode": _timed(partial(decode, False)), "decode_rgb": _timed(partial(decode, True))}


def flow(catalog: Path, method: str, quick: bool) -> dict[str, float]:
    """One field of flow, of frames of 256x256; the mean over a stack."""
    import essp

    extractor = registry.create("flow", {"method": method, "length": LENGTH})
    extractor.setup()
    frames = essp.decode(_video(catalog), frames=LENGTH + 1, size=(SIZE, SIZE))
    if method != "tvl1":
        extractor.extract(frames)
    stacks = 1 if quick or method == "tvl1" else 10

    def extract() -> int:
        for _ in range(stacks):
            extractor.extract(frames)
        return stacks * LENGTH

    return {"field": _timed(extract)}


def convolution(quick: bool) -> dict[str, float]:
    """ResNet152 on pictures of 224x224, in one thread: forward as in testing, and a whole step of training."""
    torch.set_num_threads(1)
    model, _ = _model()
    pictures = torch.rand(_BATCH, 3, CROP, CROP)

    def forward() -> int:
        with torch.inference_mode():
            model.eval()(pictures)
        return len(pictures)

    def step() -> int:
        model.train()(pictures).sum().backward()
        return len(pictures)

    if not quick:  # the first ones allocate
        forward()
        step()
    return {"forward": _timed(forward), "step": 0.0 if quick else _timed(step)}


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = network(NETWORK).make()
    return model, torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)


def overlapped(catalog: Path, what: str, quick: bool) -> dict[str, float]:
    """Milliseconds of wall time per clip, for `data` (ten flow fields and their frames), `network` (one training step
    on the middle frame), or both at once."""
    torch.set_num_threads(1)
    model, optimizer = _model()
    batches = 1 if quick else 6
    blank = torch.zeros(_BATCH, CROP, CROP, 3, dtype=torch.uint8)

    def learn(pictures: torch.Tensor) -> None:
        loss = model((pictures.permute(0, 3, 1, 2).float() - 128) / 64).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    count = _WARM + batches + _AHEAD
    source: AbstractContextManager[Iterable[Any]] = nullcontext(repeat(None, count))
    if what != "network":
        source = _clips(catalog, count)
    with source as clips:
        began_s = 0.0
        for done, _ in enumerate(clips, 1):
            if what != "data":
                learn(blank)
            if done == _WARM:
                began_s = time.perf_counter()
            if done == _WARM + batches:
                break
        took_s = time.perf_counter() - began_s
    return {"clip": 1e3 * took_s / (batches * _BATCH)}


def _clips(catalog: Path, batches: int) -> AbstractContextManager[Iterable[Any]]:
    import essp

    return essp.Loader(
        catalog,
        clip=essp.Clip(frames=LENGTH + 1, size=SIZE),
        feature="flow",
        params={"length": LENGTH},
        batch_size=_BATCH,
        validation_fraction=0.0,
        sampling=essp.Sampling(clips_per_epoch=batches * _BATCH),
        limits=essp.Limits(epochs=1, decoders=1, memory="32MiB"),
    )


def _steps(options: Options) -> Steps:
    catalog = catalog_of("made", options)
    for round_number in range(options.rounds):
        yield f"decode.{round_number}", partial(apart, decoding, catalog, options.quick)
        for method in METHODS:
            if not (options.quick and method == "tvl1"):
                yield f"flow.{method}.{round_number}", partial(apart, flow, catalog, method, options.quick)
        yield f"network.{round_number}", partial(apart, convolution, options.quick)
        for what in ("data", "network", "both"):
            yield f"overlapped.{what}.{round_number}", partial(apart, overlapped, catalog, what, options.quick)


def figures(values: Values) -> dict[str, list[float]]:
    """The milliseconds of each operation, round by round."""
    found: dict[str, list[float]] = {}
    for key, value in values.items():
        name = key.rpartition(".")[0]
        for figure, milliseconds in value.items():
            found.setdefault(f"{name}.{figure}", []).append(milliseconds)
    return found


def _table(values: Values) -> str:
    found = figures(values)
    shown = {
        "decode.decode": "decoding, MPEG-4 of 320x240",
        "decode.decode_rgb": "decoding, and scaling to RGB of 256x256",
        "flow.dis.field": "flow of two frames of 256x256, DIS (ESSP's default)",
        "flow.farneback.field": "the same, Farneback",
        "flow.tvl1.field": "the same, TV-L1",
        "network.forward": f"{NETWORK}, forward, one picture",
        "network.step": f"{NETWORK}, forward and backward, one picture",
    }
    rows = [[title, f"{spread(found[key])} ms", ""] for key, title in shown.items() if key in found]
    both = [("decode.decode_rgb", "flow.dis.field"), ("decode.decode_rgb", "flow.tvl1.field")]
    for pair, method in zip(both, ("DIS", "TV-L1"), strict=True):
        if all(key in found for key in pair):
            total = [sum(times) for times in zip(*(found[key] for key in pair), strict=False)]
            rows.append([f"**decode and optical flow**, {method}", f"**{spread(total)} ms**", "40 ms, one core"])
    rows.append(["**convolution**", "see above, one core", "1 ms, Titan X"])
    text = markdown(["operation on one frame", "here, CPU time of one core", "the paper, Table 4"], rows)
    alone = [found.get(f"overlapped.{what}.clip", []) for what in ("data", "network", "both")]
    if not all(alone):
        return f"{text}\n\nNot measured yet: decoding and training at once."
    titles = ("decoding and flow alone", "one step on one frame alone", "at once")
    clips = [[title, f"{spread(times)} ms"] for title, times in zip(titles, alone, strict=True)]
    data, step, at_once = (np.array(times) for times in alone)
    shares = [spread(list(times / step), "{:.2f}") for times in (at_once, data + step)]
    text += "\n\n" + markdown(["a clip of ten fields, by the clock", ""], clips)
    text += f"\n\nAt once, a clip takes {shares[0]} times the network's step alone; one after the other, it would take "
    text += f"{shares[1]} times as long."
    return text


def _draw(values: Values) -> Figure | None:
    found = figures(values)
    bars: dict[str, float] = {
        "paper: decode and flow": PAPER["decode and flow"],
        "paper: convolution (GPU)": PAPER["convolution"],
    }
    for name, key in (
        ("decode", "decode.decode"),
        ("decode to RGB", "decode.decode_rgb"),
        ("flow, DIS", "flow.dis.field"),
        ("flow, Farneback", "flow.farneback.field"),
        ("flow, TV-L1", "flow.tvl1.field"),
        (f"{NETWORK}, forward (CPU)", "network.forward"),
        (f"{NETWORK}, step (CPU)", "network.step"),
    ):
        if key in found:
            bars[name] = float(np.median(found[key]))
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    colours = ["#c8553d" if name.startswith("paper") else "#2a7f62" for name in bars]
    axes.barh(list(bars), list(bars.values()), color=colours)
    axes.bar_label(axes.containers[0], [f" {number(value)}" for value in bars.values()])
    axes.set_xscale("log")
    axes.set_xlabel("ms for one frame")
    axes.invert_yaxis()
    return figure


PART = Part("per_frame", "milliseconds of each operation on one frame, here and in the paper's Table 4",
            _steps, _table, _draw, quiet=True)  # fmt: skip

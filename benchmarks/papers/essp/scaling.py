"""Ranks and decoders: measured on real processes, and simulated beyond what this machine has.

`scaling` trains a small network on stacks of sixteen frames with R ranks, each a process with an `essp.Loader` of its
own and D decoders, which average their gradients over gloo. A clip takes a decoder about as long as a rank, so that
both numbers matter. The simulator of `essp plan` gets the cost of a clip in each part from one run of one rank, and
predicts every other combination on the same cores. It sees no measurement of those; the largest is held out.

`table5` asks it what the paper's cluster could have done: GPUs that take 1 ms for a frame, and cores that take 40 ms to
decode it and to compute its flow (its Table 4), with more and more cores. It also says how long the paper's own number
of updates would take at that rate, next to the hours of its Table 5.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import distributed, nn

from benchmarks.papers.document import markdown, spread
from benchmarks.papers.essp.extracting import catalog_of
from benchmarks.papers.essp.traditional import network_of
from benchmarks.papers.machine import apart, cpu_s
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.capacity.setups import Consumer, Pool, Setup
from essp.capacity.simulation import simulate
from essp.servers.servers import free_port
from essp_common.runtime.cores import cpu_count

RANKS = DECODERS = (1, 2, 4)
HELD_BACK = (4, 4)
GPUS = (1, 2, 4, 8)
DECODE_S, CONVOLVE_S = 0.040, 0.001
"""Of a frame, by the paper's Table 4: one core, and one GPU."""
BATCH, UPDATES = 256, {"spatial": 20_000, "temporal": 200_000}
"""The paper's batch, and the update at which its rate falls for the last time: training lasts at least so long."""
HOURS = {"spatial": {4: 12, 8: 8}, "temporal": {4: 18, 8: 10}}
"""The paper's Table 5."""
CORES = (4, 8, 16, 32, 64, 128, 256)
_BATCH, _FRAMES = 8, 16
_WARM, _TIMED, _AHEAD = 8, 30, 8
"""Batches before the timed ones, in which decoders get ahead, and after them, so that they still are at the end."""
_MEMORY = "37MiB"
"""Of a loader: it holds `_AHEAD` batches."""
_NULL_S = 1e-6


def trained(catalog: Path, ranks: int, decoders: int, quick: bool) -> dict[str, float]:
    """Clips per second of all ranks together, by the clock, once decoders are as far ahead as they get."""
    batches = 4 if quick else _TIMED
    context = get_context("spawn")
    port = free_port()
    pipes, processes = [], []
    for rank in range(ranks):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(sender, catalog, rank, ranks, decoders, batches, port))
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    found = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    clips, wall_s = sum(one["clips"] for one in found), max(one["wall_s"] for one in found)
    parts = {name: sum(one[name] for one in found) / clips for name in ("data_s", "train_s")}
    return {"clips_per_s": clips / wall_s, "cpus": cpu_count(), **parts}


def _rank(sender: Connection, catalog: Path, rank: int, ranks: int, decoders: int, batches: int, port: int) -> None:
    """One rank: sends its number of clips, its time, and the processor time of its data and of its training."""
    import essp

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network_of(3 * _FRAMES, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    sampling = essp.Sampling(clips_per_epoch=(_WARM + batches + _AHEAD) * _BATCH * ranks)
    limits = essp.Limits(epochs=1, decoders=decoders, memory=_MEMORY)
    with essp.Loader(
        catalog, clip=essp.Clip(frames=_FRAMES, stride=8, size=112), batch_size=_BATCH, validation_fraction=0.0,
        sampling=sampling, limits=limits, rank=rank, world_size=ranks,
    ) as loader:  # fmt: skip
        clips, train_s, began_s, used_s = 0, 0.0, 0.0, 0.0
        for number, batch in enumerate(loader):
            if number == _WARM:
                distributed.barrier()
                began_s, used_s, train_s, clips = time.perf_counter(), cpu_s(), 0.0, 0
            before_s = time.thread_time()
            _learn(model, optimizer, batch.frames, ranks)
            train_s += time.thread_time() - before_s
            clips += len(batch)
            if number + 1 == _WARM + batches:
                break
        wall_s, used_s = time.perf_counter() - began_s, cpu_s() - used_s
    distributed.destroy_process_group()
    sender.send({"clips": clips, "wall_s": wall_s, "data_s": max(0.0, used_s - train_s), "train_s": train_s})


def _learn(model: nn.Module, optimizer: torch.optim.Optimizer, frames: torch.Tensor, ranks: int) -> None:
    stacks = frames.permute(0, 1, 4, 2, 3).flatten(1, 2)
    loss = model((stacks.float() - 128) / 64).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            distributed.all_reduce(parameter.grad)
            parameter.grad /= ranks
    optimizer.step()


def predicted(cost: Mapping[str, float], ranks: int, decoders: int, cores: int) -> float:
    """Clips per second by the simulator. A rank is a worker of a pool; the trainer after it takes no time."""
    pools = (
        Pool("decoder", cost["data_s"], ranks * decoders, None),
        Pool("rank", cost["train_s"], ranks, "decoder"),
    )
    setup = Setup(pools, (Consumer("none", "rank", _BATCH * ranks, _NULL_S),), 8 * _BATCH * ranks, cores)
    return simulate(setup).clips_per_s


def cluster_rate(gpus: int, cores: int) -> float:
    """Frames per second of a number of GPUs and of decoding cores, at the paper's speeds."""
    pools = (Pool("decoder", DECODE_S, cores, None), Pool("gpu", CONVOLVE_S, gpus, "decoder"))
    one_by_one = Consumer("none", "gpu", 1, _NULL_S)  # whole batches would count in steps
    return min(gpus / CONVOLVE_S, simulate(Setup(pools, (one_by_one,), 8 * BATCH)).clips_per_s)


def _scaling_steps(options: Options) -> Steps:
    catalog = catalog_of("made", options)
    ranks = (1, 2) if options.quick else RANKS
    for number in range(options.rounds):
        for rank in ranks:
            for decoders in ranks:
                yield f"{rank}.{decoders}.{number}", partial(apart, trained, catalog, rank, decoders, options.quick)


def _runs(values: Values, ranks: int, decoders: int) -> list[Mapping[str, float]]:
    return [value for key, value in values.items() if key.startswith(f"{ranks}.{decoders}.")]


def _rates(values: Values, ranks: int, decoders: int) -> list[float]:
    return [run["clips_per_s"] for run in _runs(values, ranks, decoders)]


def _calibration(values: Values) -> Mapping[str, float]:
    """The cost of a clip, of the cheapest run of one rank with one decoder."""
    return min(_runs(values, 1, 1), key=lambda run: run["train_s"])


def _scaling_table(values: Values) -> str:
    cost, rows = _calibration(values), []
    cores = int(cost["cpus"])
    for ranks in RANKS:
        for decoders in DECODERS:
            if rates := _rates(values, ranks, decoders):
                said = predicted(cost, ranks, decoders, cores)
                off = said / sorted(rates)[len(rates) // 2] - 1
                mark = " (calibrated on it)" if (ranks, decoders) == (1, 1) else ""
                mark = " (held back)" if (ranks, decoders) == HELD_BACK else mark
                used = [1e3 * (run["data_s"] + run["train_s"]) for run in _runs(values, ranks, decoders)]
                cells = [spread(used), spread(rates, "{:.1f}"), f"{said:.1f}{mark}", f"{off:+.0%}"]
                rows.append([str(ranks), str(decoders), *cells])
    head = ["ranks", "decoders of each", "CPU ms a clip", "measured, clips/s", "simulated", "off by"]
    return markdown(head, rows)


def _draw_scaling(values: Values) -> Figure | None:
    cost = _calibration(values)
    cores = int(cost["cpus"])
    figure = Figure(figsize=(7.6, 3.0), layout="constrained")
    here, beyond = figure.subplots(1, 2)
    ranks_beyond = (1, 2, 4, 8, 16, 32)
    beside = (-0.08, 0.0, 0.08)  # points of equal rates would hide each other
    for decoders, colour, aside in zip(DECODERS, ("#2a7f62", "#c8553d", "#33658a"), beside, strict=True):
        here.plot(RANKS, [predicted(cost, ranks, decoders, cores) for ranks in RANKS], color=colour, linewidth=1)
        for ranks in RANKS:
            for rate in _rates(values, ranks, decoders):
                here.plot(ranks + aside, rate, "o", color=colour, markersize=4)
        here.plot([], [], "o-", color=colour, label=f"{decoders} decoder{'s' * (decoders > 1)} a rank")
        rates = [predicted(cost, ranks, decoders, 4 * ranks) for ranks in ranks_beyond]
        beyond.plot(ranks_beyond, rates, color=colour, linewidth=1)
    here.set_title(f"{cores} cores: points measured, lines simulated")
    beyond.set_title("simulated, 4 cores a rank")
    here.set_xticks(RANKS)
    beyond.set_xticks((1, 8, 16, 32))
    for axes in (here, beyond):
        axes.set_xlabel("ranks")
        axes.set_ylabel("clips/s")
        axes.set_ylim(bottom=0)
    here.legend()
    return figure


def at_the_papers_speeds() -> dict[str, Any]:
    """Rates by GPUs and cores, and hours of the paper's updates."""
    rates = {f"{gpus}": {f"{cores}": round(cluster_rate(gpus, cores), 1) for cores in CORES} for gpus in GPUS}
    frames = {name: updates * BATCH for name, updates in UPDATES.items()}
    bound = {name: {f"{gpus}": round(count * CONVOLVE_S / gpus / 3600, 2) for gpus in (4, 8)}
             for name, count in frames.items()}  # fmt: skip
    implied = {name: {f"{gpus}": round(frames[name] / hours / 3600, 1) for gpus, hours in table.items()}
               for name, table in HOURS.items()}  # fmt: skip
    return {"rates": rates, "hours_by_gpus_alone": bound, "frames_per_s_of_table_5": implied}


def _table5_steps(options: Options) -> Steps:
    yield "rates", partial(apart, at_the_papers_speeds)


def _table5(values: Values) -> str:
    found = values["rates"]
    rows = []
    for gpus in GPUS:
        rates = found["rates"][f"{gpus}"]
        rows.append([str(gpus), *(f"{rate:,.0f} ({rate * CONVOLVE_S / gpus:.0%})" for rate in rates.values())])
    text = markdown(["GPUs", *(f"{cores} cores" for cores in CORES)], rows)
    hours = []
    for name, table in HOURS.items():
        for gpus, said in table.items():
            alone = found["hours_by_gpus_alone"][name][f"{gpus}"]
            implied = found["frames_per_s_of_table_5"][name][f"{gpus}"]
            needs = implied * DECODE_S
            hours.append([name, str(gpus), f"{said} h", f"{alone:g} h", f"{implied:,.0f}", f"{needs:.0f}"])
    head = ["network", "GPUs", "the paper, Table 5", "its updates at 1 ms a frame", "frames/s in its hours"]
    return f"{text}\n\n{markdown([*head, 'cores at 40 ms a frame'], hours)}"


def _draw_table5(values: Values) -> Figure | None:
    figure = Figure(figsize=(4.8, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    for gpus in GPUS:
        rates = values["rates"]["rates"][f"{gpus}"]
        busy = [rate * CONVOLVE_S / gpus for rate in rates.values()]
        axes.plot(CORES, busy, marker=".", label=f"{gpus} GPU{'s' * (gpus > 1)}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(CORES, [str(cores) for cores in CORES])
    axes.set_xlabel("cores that decode and compute flow")
    axes.set_ylabel("share of the time that GPUs compute")
    axes.legend()
    return figure


SCALING_PART = Part("scaling", "clips per second by ranks and decoders, measured and simulated",
                    _scaling_steps, _scaling_table, _draw_scaling)  # fmt: skip
TABLE5_PART = Part("table5", "how busy GPUs are, by cores, at the speeds of the paper's Table 4",
                   _table5_steps, _table5, _draw_table5, uses=())  # fmt: skip

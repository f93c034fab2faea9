"""What `essp plan` says of a machine beside what the machine does, with one core and with all of them.

The costs are measured once, on all cores. A run on one core is a process that may use no other.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.inputs import LONG_GOP
from benchmarks.measure import spread
from essp.capacity.measuring import Costs, measure
from essp.capacity.setups import on_machine
from essp.capacity.simulation import simulate
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings

_SECONDS = 15.0
_AIM = Aim(most=0.2)


def plan_error(scale: Scale) -> Iterator[Figure]:
    """How far the simulated rate is from that of a real job, two trainers on frames and on flow."""
    cores = sorted(os.sched_getaffinity(0))
    seconds = 1.0 if scale.quick else _SECONDS
    catalog = scale.catalog(LONG_GOP)
    errors: dict[int, list[float]] = {}
    rates: dict[str, float] = {}
    for _ in range(scale.rounds):
        for count in sorted({len(cores), 1}, reverse=True):
            real = _measured(catalog, cores[:count], seconds)
            if count == len(cores):
                costs = real
            planned = simulate(on_machine(_job(catalog, "file:///none"), costs, count)).clips_per_s
            errors.setdefault(count, []).append(abs(planned / real.clips_per_s - 1))
            rates |= {f"planned_{count}": round(planned, 1), f"real_{count}": round(real.clips_per_s, 1)}
    for count, found in sorted(errors.items()):
        yield Figure.of(f"plan_error.{count}", spread(found), _AIM, rates)


def _measured(catalog: Path, cores: list[int], seconds: float) -> Costs:
    """The job in a process of its own on these cores."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (catalog, cores, seconds))


def _run(catalog: Path, cores: list[int], seconds: float) -> Costs:
    os.sched_setaffinity(0, cores)
    with tempfile.TemporaryDirectory(prefix="essp-benchmark-") as folder:
        return measure(_job(catalog, f"file://{folder}"), Settings(), seconds)


def _job(catalog: Path, output: str) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "planned",
            "output": output,
            "epochs": 50,
            "data": {"catalog": f"file://{catalog}", "test": None},
            "clip": {"frames": 11, "resize": {"mode": "short_side", "height": 128}},
            "sampling": {"clips_per_epoch": 4000},
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
            "trainers": {
                name: {"stream": name, "model": "small", "batch_size": 16, "augment": {"crop": 112}}
                for name in ("rgb", "flow")
            },
        }
    )

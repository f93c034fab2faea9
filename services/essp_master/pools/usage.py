"""Converts the heartbeats of workers to what users read about them (`essp_common/job/usage.py`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from essp_common.job.usage import ONE_PROCESS, GpuUsage, PoolUsage, ProcessUsage, Usage
from essp_common.pb.v1.messages_pb2 import Gpu, Machine
from essp_common.runtime import ids
from essp_master.job.job import Job
from essp_master.pools.load import queues
from essp_master.pools.worker_registry import PoolState
from essp_master.status.pool_demand import demand_of

Process = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PoolWork:
    """What a pool does for all jobs together."""

    clips_per_s: float | None = None
    queue: int | None = None
    busy: float | None = None
    """Of trainers, whose heartbeats do not say it: the share of the time for which they do not wait."""


def work_of(jobs: Iterable[Job], states: Mapping[str, PoolState], now_s: float) -> dict[str, PoolWork]:
    """Return what each pool does for these jobs. `states`: the pools with a worker; work that none of them does has a
    row of its own."""
    present = [job for job in jobs if not job.state.ended]
    waiting = queues([demand_of(job) for job in present])
    rates: dict[str, float] = {}
    found: dict[str, PoolWork] = {}
    for job in present:
        for made, rate in job.activity.rates(now_s).items():
            rates[made] = rates.get(made, 0.0) + rate
        for name, training in job.activity.trainers.items():
            if name not in job.ledger.finals and job.works and (step := training.step) is not None:
                busy = 1.0 - step.data_wait_ratio
                found[ids.trainer_pool(job.name, name)] = PoolWork(step.clips_per_s, step.queue, busy)
    for made in {*rates, *waiting}:
        pools = [pool for pool in states if ids.serves(pool, made)] or [made]
        before = found.get(pools[0], PoolWork(0.0, 0))
        found[pools[0]] = PoolWork(
            (before.clips_per_s or 0.0) + rates.get(made, 0.0), (before.queue or 0) + waiting.get(made, 0)
        )
    return {pool: work for pool, work in found.items() if pool in states or work.clips_per_s or work.queue}


def usage_of(states: Mapping[str, PoolState], work: Mapping[str, PoolWork]) -> Usage:
    """Return what the workers use. `states`: those that are up, by pool. `work`: what is known of some pools, which may
    have no worker that sends heartbeats."""
    processes = _processes(states)
    by_pool: dict[str, list[ProcessUsage]] = {}
    for process in processes:
        by_pool.setdefault(process.pools[0] if len(process.pools) == 1 else ONE_PROCESS, []).append(process)
    names = sorted({*states, *by_pool, *work}, key=lambda name: (name == ONE_PROCESS, name))
    nobody = PoolState()
    return Usage(
        pools=tuple(
            _pool(name, states.get(name, nobody), by_pool.get(name, ()), work.get(name, PoolWork())) for name in names
        ),
        processes=tuple(processes),
    )


def _processes(states: Mapping[str, PoolState]) -> list[ProcessUsage]:
    found: dict[Process, Machine] = {}
    pools: dict[Process, dict[str, None]] = {}
    workers: dict[Process, dict[str, None]] = {}
    newest: dict[Process, float] = {}
    for pool, state in states.items():
        for worker in state.workers:
            if worker.machine is None:
                continue
            process = worker.machine.host, worker.machine.process
            pools.setdefault(process, {})[pool] = None
            workers.setdefault(process, {})[worker.name] = None
            if worker.reported_s >= newest.get(process, worker.reported_s):
                found[process], newest[process] = worker.machine, worker.reported_s
    return [_process(found[key], tuple(sorted(pools[key])), tuple(sorted(workers[key]))) for key in sorted(found)]


def _process(machine: Machine, pools: tuple[str, ...], workers: tuple[str, ...]) -> ProcessUsage:
    return ProcessUsage(
        host=machine.host,
        process=machine.process,
        workers=workers,
        pools=pools,
        cpu_cores=machine.cpu if machine.HasField("cpu") else None,
        cores=machine.cores,
        memory_bytes=machine.memory_bytes,
        memory_limit_bytes=machine.memory_limit_bytes,
        disk_free_bytes=machine.disk_free_bytes,
        disk_bytes=machine.disk_bytes,
        gpus=tuple(map(_gpu, machine.gpus)),
    )


def _gpu(gpu: Gpu) -> GpuUsage:
    return GpuUsage(
        id=gpu.id,
        name=gpu.name,
        busy=gpu.busy if gpu.HasField("busy") else None,
        memory_bytes=gpu.memory_bytes if gpu.HasField("memory_bytes") else None,
        memory_limit_bytes=gpu.memory_limit_bytes,
        watts=gpu.watts if gpu.HasField("watts") else None,
    )


def _pool(name: str, state: PoolState, processes: Sequence[ProcessUsage], work: PoolWork) -> PoolUsage:
    gpus = list({(process.host, gpu.id): gpu for process in processes for gpu in process.gpus}.values())
    busy = [worker.busy for worker in state.workers if worker.reports_busy]
    return PoolUsage(
        pool=name,
        workers=len(processes) if name == ONE_PROCESS else state.ready,
        busy=sum(busy) / len(busy) if busy else work.busy,
        clips_per_s=work.clips_per_s,
        queue=work.queue,
        cpu_cores=_sum(process.cpu_cores for process in processes),
        cores=_sum({process.host: process.cores for process in processes}.values()),
        memory_bytes=_whole(process.memory_bytes for process in processes),
        memory_limit_bytes=min((process.memory_limit_bytes for process in processes), default=None),
        disk_free_bytes=min((p.disk_free_bytes for p in processes if p.disk_bytes), default=None),
        gpus=len(gpus),
        gpu_busy=_mean(gpu.busy for gpu in gpus),
        gpu_memory_bytes=_whole(gpu.memory_bytes for gpu in gpus),
        gpu_memory_limit_bytes=sum(gpu.memory_limit_bytes for gpu in gpus) if gpus else None,
        gpu_watts=_sum(gpu.watts for gpu in gpus),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

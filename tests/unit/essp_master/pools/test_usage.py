"""What the workers of pools use, from their heartbeats."""

from __future__ import annotations

from typing import Any

from essp_common.job.usage import ONE_PROCESS, PoolUsage
from essp_common.pb.v1.messages_pb2 import Gpu, Heartbeat, Machine
from essp_master.pools.usage import PoolWork, usage_of
from essp_master.pools.worker_registry import WorkerRegistry


def machine(host: str, process: int = 1, gpus: tuple[str, ...] = (), **figures: Any) -> Machine:
    present = [Gpu(id=id, name="H200", busy=0.5, memory_bytes=10, memory_limit_bytes=100, watts=300) for id in gpus]
    return Machine(host=host, process=process, gpus=present, **({"cores": 4, "memory_limit_bytes": 1000} | figures))


def registry(*beats: tuple[str, str, Machine | None]) -> WorkerRegistry:
    """Workers by name, pool and machine."""
    found = WorkerRegistry()
    for worker, pool, of in beats:
        found.note(worker, Heartbeat(pool=pool, gauges={"busy": 0.5}, machine=of), 0.0)
    return found


def row(name: str, *beats: tuple[str, str, Machine | None]) -> PoolUsage:
    usage = usage_of(registry(*beats).everybody(0.0), {})
    return next(pool for pool in usage.pools if pool.pool == name)


def test_a_pool_uses_what_its_workers_do_together_and_has_the_room_of_the_scarcest() -> None:
    one = machine("a", cpu=1.5, memory_bytes=100, disk_free_bytes=7, disk_bytes=10)
    other = machine("b", cpu=0.5, memory_bytes=300, memory_limit_bytes=500, disk_free_bytes=9, disk_bytes=10)
    found = row("decoder", ("w1", "decoder", one), ("w2", "decoder", other), ("w3", "decoder", None))
    assert (found.workers, found.cpu_cores, found.cores, found.memory_bytes) == (3, 2.0, 8.0, 400)
    assert (found.memory_limit_bytes, found.disk_free_bytes, found.busy) == (500, 7, 0.5)
    assert (found.gpus, found.gpu_busy, found.gpu_memory_bytes, found.gpu_watts) == (0, None, None, None)


def test_a_machine_and_a_gpu_that_several_workers_share_count_once() -> None:
    ranks = [(f"r{n}", "trainer.j.rgb", machine("a", n, ("x", f"y{n}"), cpu=1.0)) for n in (1, 2)]
    found = row("trainer.j.rgb", *ranks)
    assert (found.cores, found.cpu_cores, found.gpus, found.gpu_watts) == (4.0, 2.0, 3, 900.0)
    assert (found.gpu_memory_bytes, found.gpu_memory_limit_bytes) == (30, 300)


def test_the_pools_of_one_process_have_their_figures_only_together() -> None:
    shared = machine("a", cpu=1.0, memory_bytes=100)
    beats = [("w", pool, shared) for pool in ("decoder", "extractor.flow", "master")]
    assert row("decoder", *beats).cpu_cores is None
    together = row(ONE_PROCESS, *beats)
    assert (together.workers, together.cpu_cores, together.memory_bytes) == (1, 1.0, 100)
    (process,) = usage_of(registry(*beats).everybody(0.0), {}).processes
    assert process.pools == ("decoder", "extractor.flow", "master")


def test_masters_are_shown_and_are_no_pool_to_be_scaled() -> None:
    found = registry(("m", "master", machine("a")), ("w", "decoder", machine("b")))
    assert set(found.pools(0.0)) == {"decoder"}
    assert set(found.heard()) == {"decoder"}
    assert set(found.everybody(0.0)) == {"decoder", "master"}


def test_a_pool_without_heartbeats_shows_what_it_does() -> None:
    usage = usage_of({}, {"trainer.j.rgb": PoolWork(9.0, 4, 0.75)})
    (found,) = usage.pools
    assert (found.pool, found.workers, found.clips_per_s, found.queue, found.busy) == ("trainer.j.rgb", 0, 9.0, 4, 0.75)

"""The two kinds of process of a training: a rank, and the supervisor that keeps several ranks running."""

from __future__ import annotations

import sys
from contextlib import closing

from essp_common.errors import ConfigError, DeviceLost
from essp_common.messages.control import ControlFeed
from essp_common.runtime import ids
from essp_common.runtime.children import module_command
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_engine.loading.rendezvous import Rendezvous
from essp_engine.worker.heartbeat import Heart
from essp_engine.worker.log_shipping import LogShipper
from essp_trainer.config import TrainerConfig, TrainerSettings
from essp_trainer.distributed.supervisor import EXIT_RANK_LOST, Supervisor


def supervise(job: str, trainer: str, count: int, settings: TrainerSettings, rendezvous: Rendezvous) -> int:
    """Start `count` ranks on this machine and restart them when one dies. Returns the exit code."""
    if rendezvous.world_size > 1:
        raise ConfigError(
            "--ranks starts ranks, but WORLD_SIZE says that this process is one already; give only one of the two",
            code="conflict",
        )
    if settings.bus.startswith("memory:"):
        raise ConfigError(
            "--ranks starts several processes, which cannot share memory://; set ESSP_BUS, ESSP_CACHE and ESSP_STORES",
            code="conflict",
        )
    without_metrics = settings.model_copy(update={"metrics_port": 0})  # each rank has its own port
    command = module_command("essp_trainer.main", "--job", job, "--trainer", trainer)
    supervisor = Supervisor(command, count, settings)
    serve(supervisor, without_metrics, job_id=job)
    return settings.drained_exit if supervisor.interrupted else 0


def run_rank(job: str, trainer: str, settings: TrainerSettings, rendezvous: Rendezvous) -> int:
    """Run one rank, possibly the only one. Returns the exit code, which tells the supervisor, and in Kubernetes the
    master, that the rank is not at fault if another one, or the GPU, has failed."""
    # Only ranks load torch; the supervisor does not.
    from essp_trainer.distributed.ranks import RankLost

    try:
        return _run_rank(job, trainer, settings, rendezvous)
    except (DeviceLost, RankLost) as error:
        print(f"essp trainer: {error}", file=sys.stderr)
        return EXIT_RANK_LOST


def _run_rank(job: str, trainer: str, settings: TrainerSettings, rendezvous: Rendezvous) -> int:
    from essp_trainer.distributed.ranks import init_ranks
    from essp_trainer.service import build

    if rendezvous.world_size > 1:
        own = {"worker": f"{worker_name(settings)}-rank{rendezvous.rank}"}
        port = settings.metrics_port + rendezvous.local_rank if settings.metrics_port else 0
        settings = settings.model_copy(update=own | {"metrics_port": port})
    worker, pool = worker_name(settings), ids.trainer_pool(job, trainer)
    with (
        closing(init_ranks(rendezvous, settings.rank_timeout_s, settings.partitions)) as ranks,
        closing(Adapters.from_settings(settings)) as adapters,
        closing(ControlFeed(adapters.bus)) as control,
        LogShipper(adapters.bus, worker, pool),
        Heart(adapters.bus, worker, pool, dict, troubles=adapters.troubles),
    ):
        config = TrainerConfig(
            job=job,
            trainer=trainer,
            worker=worker,
            local_rank=rendezvous.local_rank,
            local_ranks=rendezvous.local_world_size,
            settings=settings,
        )
        service = build(config, adapters, control, ranks)
        serve(service, settings, adapters.troubles, job_id=job)
    return settings.drained_exit if service.interrupted else 0

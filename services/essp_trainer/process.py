"""The two kinds of process of a training: a rank, which may be the only one, and the one that keeps several running."""

from __future__ import annotations

import sys
from contextlib import closing

from essp_common.errors import ConfigError
from essp_common.messages.control import ControlFeed
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_trainer.config import Rendezvous, TrainerConfig, TrainerSettings
from essp_trainer.distributed.supervisor import Supervisor


def supervise(job: str, trainer: str, count: int, settings: TrainerSettings, rendezvous: Rendezvous) -> int:
    """Start so many ranks on this machine, again when one dies; the exit code."""
    if rendezvous.world_size > 1:
        raise ConfigError("--ranks starts ranks, and WORLD_SIZE says that this is one; give either")
    if settings.bus.startswith("memory:"):
        raise ConfigError(
            "--ranks starts processes, which cannot meet on memory://; set ESSP_BUS, ESSP_CACHE, ESSP_STORES"
        )
    alone = settings.model_copy(update={"metrics_port": 0})  # each rank has its own
    command = [sys.executable, "-m", "essp_trainer.main", "--job", job, "--trainer", trainer]
    supervisor = Supervisor(command, count, settings)
    serve(supervisor, alone, job_id=job)
    return settings.drained_exit if supervisor.interrupted else 0


def run_rank(job: str, trainer: str, settings: TrainerSettings, rendezvous: Rendezvous) -> int:
    """Be one rank, which may be the only one; the exit code."""
    # Torch is loaded by ranks alone, not by who supervises them.
    from essp_trainer.distributed.ranks import init_ranks
    from essp_trainer.service import build

    if rendezvous.world_size > 1:
        own = {"worker": f"{worker_name(settings)}-rank{rendezvous.rank}"}
        port = settings.metrics_port + rendezvous.local_rank if settings.metrics_port else 0
        settings = settings.model_copy(update=own | {"metrics_port": port})
    with (
        closing(init_ranks(rendezvous, settings.rank_timeout_s)) as ranks,
        closing(Adapters.from_settings(settings)) as adapters,
        closing(ControlFeed(adapters.bus)) as control,
    ):
        config = TrainerConfig(
            job=job,
            trainer=trainer,
            worker=worker_name(settings),
            local_rank=rendezvous.local_rank,
            local_ranks=rendezvous.local_world_size,
            settings=settings,
        )
        service = build(config, adapters, control, ranks)
        serve(service, settings, job_id=job)
    return settings.drained_exit if service.interrupted else 0

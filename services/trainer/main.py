"""`essp trainer`: one training of one job, until its last checkpoint; alone, or on several ranks.

essp trainer --job NAME --trainer rgb                  one process
essp trainer --job NAME --trainer rgb --ranks 2        two, on this machine, started again when one dies
torchrun ... -m services.trainer.main --job NAME --trainer rgb        on any number of machines
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from essp_common.control import ControlFeed
from essp_common.errors import ConfigError, EsspError
from essp_common.process import serve, worker_name
from essp_common.topics import DATA_PARTITIONS
from essp_common.wiring import Adapters
from services.trainer.config import Rendezvous, TrainerConfig, TrainerSettings
from services.trainer.supervisor import EXIT_RANK_LOST, Supervisor


def main(
    job: Annotated[str, typer.Option(help="The job to train for; waits for it to start.")],
    trainer: Annotated[str, typer.Option(help="Which of the job's trainers.")],
    ranks: Annotated[
        int, typer.Option(min=1, max=DATA_PARTITIONS, help="Processes on this machine that share each batch.")
    ] = 1,
) -> None:
    """Train one model on one stream. Settings come from the environment (ESSP_BUS, ESSP_CACHE, ESSP_STORES, ...)."""
    settings, rendezvous = TrainerSettings(), Rendezvous.of_environment()
    if ranks == 1:
        _rank(job, trainer, settings, rendezvous)
        return
    if rendezvous.world_size > 1:
        raise ConfigError("--ranks starts ranks, and WORLD_SIZE says that this is one; give either")
    if settings.bus.startswith("memory:"):
        raise ConfigError(
            "--ranks starts processes, which cannot meet on memory://; set ESSP_BUS, ESSP_CACHE, ESSP_STORES"
        )
    alone = settings.model_copy(update={"metrics_port": 0})  # each rank has its own
    command = [sys.executable, "-m", "services.trainer.main", "--job", job, "--trainer", trainer]
    supervisor = Supervisor(command, ranks, settings)
    serve(supervisor, alone)
    if supervisor.interrupted:
        raise typer.Exit(settings.drained_exit)


def _rank(job: str, trainer: str, settings: TrainerSettings, rendezvous: Rendezvous) -> None:
    """One rank, which may be the only one."""
    from services.trainer.ranks import join
    from services.trainer.service import build

    if rendezvous.world_size > 1:
        own = {"worker": f"{worker_name(settings)}-rank{rendezvous.rank}"}
        port = settings.metrics_port + rendezvous.local_rank if settings.metrics_port else 0
        settings = settings.model_copy(update=own | {"metrics_port": port})
    with (
        closing(join(rendezvous, settings.rank_timeout_s)) as ranks,
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
        serve(service, settings)
    if service.interrupted:
        raise typer.Exit(settings.drained_exit)


def as_process() -> None:
    """Run by `python -m`, as torchrun and the supervisor do. Exit codes: 1 failed, 2 wrong settings, 75 try again."""
    from services.trainer.ranks import RankLost

    try:
        typer.run(main)
    except RankLost as error:
        sys.exit(_told(error, EXIT_RANK_LOST))
    except ConfigError as error:
        sys.exit(_told(error, 2))
    except EsspError as error:
        sys.exit(_told(error, 1))


def _told(error: EsspError, code: int) -> int:
    typer.echo(f"essp trainer: {error}", err=True)
    return code


if __name__ == "__main__":
    as_process()

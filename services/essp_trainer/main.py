"""`essp trainer`: one training of one job until its final checkpoint, on one rank or on several.

essp trainer --job NAME --trainer rgb                             one process
essp trainer --job NAME --trainer rgb --ranks 2                   two on this machine, restarted when one dies
torchrun ... -m essp_trainer.main --job NAME --trainer rgb        on any number of machines
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, EsspError, TransientError
from essp_common.runtime.garbage import collect_rarely
from essp_common.topics import MOST_PARTITIONS
from essp_engine.loading.rendezvous import Rendezvous
from essp_trainer.config import TrainerSettings
from essp_trainer.distributed.supervisor import EXIT_RANK_LOST
from essp_trainer.process import run_rank, supervise


def main(
    job: Annotated[str, typer.Option(help="The job to train for; the trainer waits until it starts.")],
    trainer: Annotated[str, typer.Option(help="Which of the job's trainers.")],
    ranks: Annotated[
        int, typer.Option(min=1, max=MOST_PARTITIONS, help="Processes on this machine that share each batch.")
    ] = 1,
) -> None:
    """Train one model on one stream. Settings come from the environment (ESSP_BUS, ESSP_CACHE, ESSP_STORES, ...)."""
    settings, rendezvous = TrainerSettings(), Rendezvous.of_environment()
    if ranks > 1:
        raise typer.Exit(supervise(job, trainer, ranks, settings, rendezvous))
    raise typer.Exit(run_rank(job, trainer, settings, rendezvous))


def as_process() -> None:
    """Entry point of `python -m`, which torchrun and the supervisor use.

    Exit codes: 1 the training failed, 2 the settings are wrong, 75 start all ranks again (a rank or its GPU failed, or
    a server did not answer).
    """
    collect_rarely()
    try:
        with needs_extra("essp trainer"):
            typer.run(main)
    except EsspError as error:
        typer.echo(f"essp trainer: {error}", err=True)
        otherwise = 2 if isinstance(error, ConfigError) else 1
        sys.exit(EXIT_RANK_LOST if isinstance(error, TransientError) else otherwise)


if __name__ == "__main__":
    as_process()

"""`essp trainer`: one training of one job, until its last checkpoint."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from essp_common.control import ControlFeed
from essp_common.process import serve, worker_name
from essp_common.wiring import Adapters
from services.trainer.config import TrainerConfig, TrainerSettings
from services.trainer.service import build


def main(
    job: Annotated[str, typer.Option(help="The job to train for; waits for it to start.")],
    trainer: Annotated[str, typer.Option(help="Which of the job's trainers.")],
) -> None:
    """Train one model on one stream. Settings come from the environment (ESSP_BUS, ESSP_CACHE, ESSP_STORES, ...)."""
    settings = TrainerSettings()
    with closing(Adapters.from_settings(settings)) as adapters, closing(ControlFeed(adapters.bus)) as control:
        config = TrainerConfig(job=job, trainer=trainer, worker=worker_name(settings), settings=settings)
        serve(build(config, adapters, control), settings)

"""`essp extractor run`: computes features for the clips of all jobs until stopped."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from essp_common.runtime import ids
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_engine.worker.log_shipping import LogShipper
from essp_extractor.config import ExtractorSettings
from essp_extractor.service import build


def main(
    feature: Annotated[list[str] | None, typer.Option(help="Make only this feature; can be repeated.")] = None,
) -> None:
    """Extract features. Settings come from the environment (ESSP_BUS, ESSP_CACHE, ESSP_FEATURES, ...)."""
    settings = ExtractorSettings()
    if feature:
        settings = settings.model_copy(update={"features": tuple(feature)})
    worker = worker_name(settings)
    pool = ids.extractor_pool(settings.features) if settings.features else ids.EXTRACTOR
    with closing(Adapters.from_settings(settings)) as adapters, LogShipper(adapters.bus, worker, pool):
        serve(build(adapters, settings, worker), settings, adapters.troubles)

"""`essp predictor`: classifies the videos of predict jobs until stopped."""

from __future__ import annotations

from contextlib import closing

from essp_common.runtime import ids
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_engine.worker.heartbeat import Heart
from essp_engine.worker.log_shipping import LogShipper
from essp_predictor.config import PredictorSettings
from essp_predictor.service import build


def main() -> None:
    """Score the clips of predict jobs. Settings come from the environment (ESSP_BUS, ESSP_CACHE, ESSP_STORES, ...)."""
    settings = PredictorSettings()
    worker = worker_name(settings)
    with closing(Adapters.from_settings(settings)) as adapters:
        predictor = build(adapters, settings, worker)
        with (
            LogShipper(adapters.bus, worker, ids.PREDICTOR),
            Heart(adapters.bus, worker, ids.PREDICTOR, predictor.gauges, troubles=adapters.troubles),
        ):
            serve(predictor, settings, adapters.troubles)

"""`essp aggregator`: fuses the streams of finished trainers until stopped."""

from __future__ import annotations

from contextlib import closing

from essp_aggregator.config import AggregatorSettings
from essp_aggregator.service import build
from essp_common.runtime import ids
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_engine.worker.heartbeat import Heart
from essp_engine.worker.log_shipping import LogShipper


def main() -> None:
    """Fuse the streams of finished trainers. Settings come from the environment (ESSP_BUS, ESSP_STORES, ...)."""
    settings = AggregatorSettings()
    worker = worker_name(settings)
    with closing(Adapters.from_settings(settings)) as adapters:
        aggregator = build(adapters, settings, worker)
        with (
            LogShipper(adapters.bus, worker, ids.AGGREGATOR),
            Heart(adapters.bus, worker, ids.AGGREGATOR, aggregator.gauges, troubles=adapters.troubles),
        ):
            serve(aggregator, settings, adapters.troubles)

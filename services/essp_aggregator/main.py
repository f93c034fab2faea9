"""`essp aggregator`: fuse the streams of finished trainers, until stopped."""

from __future__ import annotations

from contextlib import closing

from essp_aggregator.config import AggregatorSettings
from essp_aggregator.service import build
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters


def main() -> None:
    """Fuse the streams of finished trainers. Settings come from the environment (ESSP_BUS, ESSP_STORES, ...)."""
    settings = AggregatorSettings()
    with closing(Adapters.from_settings(settings)) as adapters:
        serve(build(adapters, settings, worker_name(settings)), settings, adapters.troubles)

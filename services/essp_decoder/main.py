"""`essp decoder`: decodes the seeds of all jobs until stopped."""

from __future__ import annotations

from contextlib import closing

from essp_common.runtime import ids
from essp_common.runtime.process import serve, worker_name
from essp_common.wiring import Adapters
from essp_decoder.config import DecoderSettings
from essp_decoder.service import build
from essp_engine.worker.log_shipping import LogShipper


def main() -> None:
    """Decode clips. Settings come from the environment (ESSP_BUS, ESSP_CACHE, ESSP_STORES, ESSP_DECODER_PROCESSES)."""
    settings = DecoderSettings()
    worker = worker_name(settings)
    with closing(Adapters.from_settings(settings)) as adapters, LogShipper(adapters.bus, worker, ids.DECODER):
        serve(build(adapters, settings, worker), settings, adapters.troubles)

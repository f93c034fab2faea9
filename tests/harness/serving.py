"""A master's API on a port of its own, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from starlette.applications import Starlette

from essp_common.wiring import Adapters, open_store
from essp_engine.registrations import Registrations
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.config import MasterSettings
from essp_master.pools.observe_only import ObserveOnlyDriver
from essp_master.pools.reconciler import Reconciler
from essp_master.pools.rule_book import PoolRuleBook
from essp_master.service import Master
from tests.harness.fleet import Fleet, adapters_in, make_job, master_over, run_to_rest
from tests.harness.running import running
from tests.harness.waiting import LONGEST_S

JSON = {"Content-Type": "application/json"}
"""What the API asks of bodies."""


@contextmanager
def served(app: Starlette, settings: MasterSettings | None = None) -> Iterator[str]:
    """The URL of an API."""
    server = ApiServer(app, "127.0.0.1", 0, settings or MasterSettings())
    with running(server):
        yield f"http://127.0.0.1:{server.port}"


def whole_app(master: Master, folder: Path, settings: MasterSettings) -> Starlette:
    """An API with all of its parts: registrations, which lie in this folder, and pools, which nobody scales."""
    tables = Registrations(open_store((folder / "state").as_uri()), ["registry.example/"])
    driver = ObserveOnlyDriver(master.worker_registry)
    reconciler = Reconciler(
        driver, master.worker_registry, master.pool_demands, PoolRuleBook(extractors=tables.extractors)
    )
    return create_app(master, settings, tables, reconciler)


class Served:
    """A master with its API on a port, a job, and a fleet that does as it is told when the test says so."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._open = ExitStack()
        self.adapters: Adapters = self._open.enter_context(closing(adapters_in(folder)))
        self.settings = MasterSettings.model_validate(settings)
        self.master: Master = master_over(self.adapters, **settings)
        self.job = make_job(folder)
        self.fleet = self._open.enter_context(closing(Fleet(self.adapters, self.job)))
        self.url = self._open.enter_context(served(create_app(self.master, self.settings), self.settings))
        client = httpx.Client(base_url=self.url, timeout=LONGEST_S, verify=False, headers=JSON)
        # `verify=False`: reading certificates takes long
        self.client = self._open.enter_context(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def start(self) -> httpx.Response:
        return self.client.post("/v1/jobs", content=self.job.model_dump_json())

    def complete(self) -> None:
        run_to_rest(self.master, self.fleet)
        self.fleet.finish()
        run_to_rest(self.master, self.fleet)

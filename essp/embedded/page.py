"""The page of this process, with the REST API: of the job that runs in it, or of jobs that have run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from essp_common.distribution import require
from essp_common.runtime.config import Settings
from essp_common.wiring import Adapters
from essp_master.config import MasterSettings
from essp_master.service import Master
from essp_master.service import build as build_master


class Page(Protocol):
    """A page that can be opened."""

    @property
    def address(self) -> str:
        """The address to open in a browser, with its token, or to pass to `essp job --server`."""

    def serving(self, master: Master) -> AbstractContextManager[None]:
        """Serve this master's jobs within the block."""


@contextmanager
def open_page(command: str, host: str, port: int, reads_only: bool = False) -> Iterator[Page]:
    """Listen within the block, on any free port if `port` is 0. `command`: what asks for it, for errors. `reads_only`:
    with the token in its address, nothing can be changed.

    Raises `ConfigError` if the port is taken, or if the libraries of the API are not installed.
    """
    for library in ("fastapi", "uvicorn"):
        require(command, library)
    from essp_master.api.local_api import LocalApi  # which loads these libraries

    with LocalApi(MasterSettings(), host, port, reads_only) as api:
        yield api


@contextmanager
def past_jobs(settings: Settings) -> Iterator[Master]:
    """A master within the block that runs no job, with everything in memory: it lists the jobs given to its `show`."""
    memory = settings.model_copy(update={"bus": "memory://", "cache": "memory://"})
    adapters = Adapters.from_settings(memory)
    try:
        yield build_master(adapters, MasterSettings(bus="memory://", cache="memory://"), "page")
    finally:
        adapters.close()

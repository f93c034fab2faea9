"""The API and the page of a process that runs jobs itself: `essp run --serve`.

It listens before anything else is loaded, and on localhost alone unless it is told otherwise. Whoever has its address
has its token: it is behind the `#`, which browsers neither send nor tell to other sites. The page keeps it for its tab.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from essp_common.runtime.listening import EVERYWHERE
from essp_common.runtime.threads import guarded
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.api.standby import Front
from essp_master.api.waiting import create_waiting
from essp_master.config import MasterSettings
from essp_master.service import Master

_BYTES = 32
"""Of a token: nobody guesses it."""


class LocalApi:
    """Serves the jobs of this process, one after the other, for as long as a block lasts."""

    def __init__(self, settings: MasterSettings, host: str, port: int) -> None:
        """Listen at once. Raises `ConfigError` when the port is taken.

        `settings`: tokens of the environment are asked for; where there are none, and the API is not to be open, one is
        made.
        """
        self._made = "" if settings.tokens() or settings.api_open else secrets.token_urlsafe(_BYTES)
        if self._made:
            settings = settings.model_copy(update={"api_token": SecretStr(self._made)})
        self._settings = settings.model_copy(update={"api_hosts": (*settings.api_hosts, host)})
        self._front = Front(create_waiting(self._settings))
        self._server = ApiServer(self._front, host, port, self._settings)
        self._host = socket.gethostname() if host in (EVERYWHERE, "0.0.0.0") else host
        self._thread = guarded("essp-api", self._server.run)  # the run goes on without its page

    @property
    def address(self) -> str:
        """What to open in a browser, or to give to `essp job --server`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.port}/" + (f"#token={self._made}" if self._made else "")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.drain()
        self._thread.join()

    @contextmanager
    def serving(self, master: Master) -> Iterator[None]:
        """Within the block the jobs are those of this master."""
        waiting, self._front.app = self._front.app, create_app(master, self._settings)
        try:
            yield
        finally:
            self._front.app = waiting

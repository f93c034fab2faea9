"""The API and the page of a process that runs jobs itself: `essp run --serve`.

It listens before anything else is loaded, and only on localhost by default. Its address contains the token, behind the
`#`, which browsers neither send nor reveal to other sites. The page keeps the token for its tab.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from essp_common.runtime.api_token import ApiToken, Right
from essp_common.runtime.listening import EVERYWHERE
from essp_common.runtime.threads import guarded
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.api.standby import Front
from essp_master.api.waiting import create_waiting
from essp_master.config import MasterSettings
from essp_master.service import Master

_BYTES = 32
"""Length of a token; too long to guess."""


class LocalApi:
    """Serves the jobs of this process, one after the other, while its `with` block lasts."""

    def __init__(self, settings: MasterSettings, host: str, port: int, reads_only: bool = False) -> None:
        """Listen at once. Raises `ConfigError` if the port is taken.

        `settings`: callers must present one of its tokens. If it has none and the API is not meant to be open, a token
        is generated. `reads_only`: a token is always generated, with which callers can only read.
        """
        makes = reads_only or not (settings.tokens() or settings.api_open)
        self._made = secrets.token_urlsafe(_BYTES) if makes else ""
        if reads_only:
            digest = hashlib.sha256(self._made.encode()).hexdigest()
            reader = ApiToken(name="page", sha256=digest, scopes=frozenset({Right.READ}))
            given = {"api_token": SecretStr(""), "api_token_file": "", "api_tokens": (reader,)}
            settings = settings.model_copy(update=given)
        elif makes:
            settings = settings.model_copy(update={"api_token": SecretStr(self._made)})
        self._settings = settings.model_copy(update={"api_hosts": (*settings.api_hosts, host)})
        self._front = Front(create_waiting(self._settings))
        self._server = ApiServer(self._front, host, port, self._settings)
        self._host = socket.gethostname() if host in (EVERYWHERE, "0.0.0.0") else host
        self._thread = guarded("essp-api", self._server.run)  # if the API fails, the run continues without its page

    @property
    def address(self) -> str:
        """The address to open in a browser, or to pass to `essp job --server`."""
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
        """Serve this master's jobs within the block."""
        waiting, self._front.app = self._front.app, create_app(master, self._settings)
        try:
            yield
        finally:
            self._front.app = waiting

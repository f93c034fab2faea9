"""The API as a service: uvicorn in the calling thread, without signal handlers."""

from __future__ import annotations

import logging

import uvicorn
from starlette.types import ASGIApp

from essp_common.errors import ConfigError
from essp_common.runtime.listening import listening
from essp_master.api.connections import Connections, bounded
from essp_master.config import MasterSettings

log = logging.getLogger(__name__)

_GRACE_S = 3
"""How long answers under way, such as event streams, may take after a drain."""


class ApiServer:
    """Serves an app over HTTP. Implements `essp_common.runtime.service.Service`."""

    name = "api"

    def __init__(self, app: ASGIApp, host: str, port: int, settings: MasterSettings) -> None:
        """Listen at once (`port` 0: a free one, see `port`). Raises `ConfigError` if the port is taken.

        `settings`: bounds the number of connections and how slow they may be.
        """
        connections = Connections(settings.api_connections, settings.api_patience_s)
        try:
            self._socket = listening(host, port)
        except OSError as error:
            raise ConfigError(
                f"{host}:{port}: {error.strerror}; choose another with --host and --port", code="taken"
            ) from error
        config = uvicorn.Config(
            app,
            http=bounded(connections),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until drained."""
        log.info("api: listening on %s", self._url)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def drain(self) -> None:
        """Make `run` return."""
        self._server.should_exit = True

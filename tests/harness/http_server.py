"""An HTTP server for tests whose end is the end of everything: of its connections, and of their threads."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any


class ClosingHTTPServer(ThreadingHTTPServer):
    """`server_close` hangs up on clients that keep their connections, and returns when no thread serves any more."""

    daemon_threads = False  # else nothing waits for them

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        self._changing = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        with self._changing:
            for connection in self._open:
                with suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

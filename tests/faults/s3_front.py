"""An HTTP proxy before an S3 server. On demand it answers some requests wrongly, and counts them.

    status(503, n, "SlowDown")   the next n object reads are answered with this error
    truncate(n)                  the next n object reads break off after half of their body
    short(n)                     the next n object reads return half of the range, with headers that say so
    retag(n)                     the next n answers about an object carry another ETag
    delay(n, seconds)            the next n answers are late
    lose_writes(n, about)        the next n writes never reach the server: the proxy closes the connection
    lose_answers(n, about)       the next n writes are done, but the proxy closes the connection without an answer

    known_key = "one"            requests that are signed with another access key are refused; empty: none is

The first five affect reads of keys that contain the server's `about`. All other requests pass unchanged.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Self

from tests.harness.http_server import ClosingHTTPServer
from tests.harness.waiting import LONGEST_S

Answer = tuple[int, list[tuple[str, str]], bytes]
Act = Callable[["_Handler", Answer], None]

_DROPPED = {"connection", "transfer-encoding", "keep-alive", "content-length"}
_READS, _WRITES = ("GET", "HEAD"), ("PUT",)
_ALL = ("GET", "HEAD", "PUT", "POST", "DELETE")


@dataclass(frozen=True)
class Fault:
    """What is to be done to the next request of these methods for such a key."""

    name: str
    about: str
    methods: tuple[str, ...]
    act: Act | None = None
    """Instead of answering; None: end the connection."""
    asked: bool = True
    """Whether the server gets the request."""


class S3Front:
    """Listens on a free port of the loopback interface."""

    def __init__(self, upstream: int, about: str = "videos/") -> None:
        """`upstream`: port of the real one."""
        self.upstream = upstream
        self.about = about
        self.known_key = ""
        self.faults: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._next: list[Fault] = []
        handler = type("_BoundHandler", (_Handler,), {"front": self})
        self._server = ClosingHTTPServer(("127.0.0.1", 0), handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="s3-front", daemon=True)
        self._thread.start()

    def status(self, status: int, count: int, code: str) -> None:
        self._plan(str(status), count, lambda handler, _: handler.send(_error(status, code)))

    def truncate(self, count: int) -> None:
        self._plan("truncated", count, lambda handler, answer: handler.send(answer, cut=len(answer[2]) // 2))

    def short(self, count: int) -> None:
        def halve(handler: _Handler, answer: Answer) -> None:
            handler.send((answer[0], answer[1], answer[2][: len(answer[2]) // 2]))

        self._plan("short", count, halve)

    def retag(self, count: int) -> None:
        def other(handler: _Handler, answer: Answer) -> None:
            headers = [(name, '"another"' if name.lower() == "etag" else value) for name, value in answer[1]]
            handler.send((answer[0], headers, answer[2]))

        self._plan("retagged", count, other)

    def delay(self, count: int, seconds: float) -> None:
        def late(handler: _Handler, answer: Answer) -> None:
            threading.Event().wait(seconds)
            handler.send(answer)

        self._plan("late", count, late)

    def lose_writes(self, count: int, about: str) -> None:
        self._add(Fault("lost write", about, _WRITES, asked=False), count)

    def lose_answers(self, count: int, about: str) -> None:
        self._add(Fault("lost answer", about, _WRITES), count)

    def alter(self, act: Act, count: int, methods: tuple[str, ...] = _ALL, asked: bool = True) -> None:
        """The next `count` requests for keys that contain `about` are answered by `act`. `asked`: the server does them,
        too, and `act` has its answer."""
        self._add(Fault("altered", self.about, methods, act, asked), count)

    def heal(self) -> None:
        """Answer rightly from now on."""
        with self._lock:
            self._next.clear()

    def taken(self, method: str, path: str) -> Fault | None:
        """What is to be done about this request, if anything."""
        with self._lock:
            for fault in self._next:
                if method in fault.methods and fault.about in path:
                    self._next.remove(fault)
                    self.faults[fault.name] += 1
                    return fault
            return None

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _plan(self, name: str, count: int, act: Act) -> None:
        self._add(Fault(name, self.about, _READS, act), count)

    def _add(self, fault: Fault, count: int) -> None:
        with self._lock:
            self._next += [fault] * count


def _error(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>"
    return status, [], body.encode()


class _Handler(BaseHTTPRequestHandler):
    front: S3Front
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(length)
        if f"Credential={self.front.known_key}" not in self.headers.get("Authorization", "Credential="):
            self.send(_error(403, "InvalidAccessKeyId"))
            return
        fault = self.front.taken(self.command, self.path)
        if fault is not None and not fault.asked:
            self.close_connection = True
            if fault.act is not None:
                fault.act(self, (200, [], b""))
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.front.upstream, timeout=LONGEST_S)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            response = upstream.getresponse()
            answer = (response.status, response.getheaders(), response.read())
        finally:
            upstream.close()
        if fault is None:
            self.send(answer)
        elif fault.act is None:
            self.close_connection = True
        else:
            fault.act(self, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

    def send(self, answer: Answer, cut: int | None = None) -> None:
        """Answer; with `cut` the connection ends after so many bytes of the body."""
        status, headers, body = answer
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _DROPPED:
                self.send_header(name, value)
        told = [value for name, value in headers if name.lower() == "content-length"]
        self.send_header("Content-Length", told[0] if self.command == "HEAD" and told else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

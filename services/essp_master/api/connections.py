"""Bounds the API's connections in number and in time, so that no caller can take them all and keep them.

A connection is idle while it has no request under way: it has sent nothing yet, or only part of a request's head, or it
waits for its next request. When there are more connections than allowed, the one idle for longest is closed, so a probe
or a new caller always gets in. `guard.py` bounds the number of requests under way.

A request must arrive completely, and its answer must be read, within `patience_s`; slower peers are cut off.

This builds on uvicorn's h11 protocol, which bounds the head of a request (64 KiB). Input that is not HTTP gets a
problem document, like every other error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from http import HTTPStatus

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from essp_master.api.problems import MEDIA_TYPE, problem

log = logging.getLogger(__name__)


class Connections:
    """The connections of one server. Used only by its event loop."""

    def __init__(self, most: int, patience_s: float) -> None:
        """`most`: connections open at once. `patience_s`: the time allowed for a request to arrive, and for an answer
        to be read."""
        self._most = most
        self.patience_s = patience_s
        self._busy: set[asyncio.Transport] = set()
        self._idle: OrderedDict[asyncio.Transport, None] = OrderedDict()
        """Ordered from the longest idle to the most recent."""

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def opened(self, transport: asyncio.Transport) -> None:
        """Register an accepted connection. If there are too many now, abort the one idle for longest."""
        self._idle[transport] = None
        if len(self) > self._most:
            oldest, _ = self._idle.popitem(last=False)
            oldest.abort()

    def note(self, transport: asyncio.Transport, busy: bool) -> None:
        """Note that a request has begun or ended on a connection."""
        if busy and transport in self._idle:
            del self._idle[transport]
            self._busy.add(transport)
        elif not busy and transport in self._busy:
            self._busy.remove(transport)
            self._idle[transport] = None

    def closed(self, transport: asyncio.Transport) -> None:
        """Note that a connection is gone."""
        self._busy.discard(transport)
        self._idle.pop(transport, None)


def bounded(connections: Connections) -> type[asyncio.Protocol]:
    """Return a protocol class that enforces these bounds."""

    class BoundedProtocol(_Protocol):
        limits = connections

    return BoundedProtocol


class _Protocol(H11Protocol):
    """One connection."""

    limits: Connections
    _arriving: asyncio.TimerHandle | None = None
    """Cuts off a peer that does not send the rest of its request."""
    _leaving: asyncio.TimerHandle | None = None
    """Cuts off a peer that does not read its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.limits.opened(transport)
        self._await_more()

    def data_received(self, data: bytes) -> None:
        self._await_more()
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.closed(self.transport)
        self._stop("_arriving")
        self._stop("_leaving")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._leaving is None:
            self._leaving = self.loop.call_later(self.limits.patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_leaving")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # an answer is under way, and the bytes after its request are not a request
            return
        answer = problem(400, "Not HTTP", "what was sent is not a request of HTTP/1.1, or its head is too large")
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
        reason = HTTPStatus.BAD_REQUEST.phrase.encode()
        for event in (h11.Response(status_code=400, headers=headers, reason=reason), h11.Data(data=bytes(answer.body))):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()

    def _look(self) -> None:
        """Update whether a request is under way, and whether more of it still has to arrive."""
        request = self.cycle if self.cycle is not None and not self.cycle.response_complete else None
        self.limits.note(self.transport, request is not None)
        if request is not None and not request.more_body:
            self._stop("_arriving")
        elif request is None and self.conn.trailing_data[0]:
            self._await_more()
        elif request is None and self.conn.their_state in (h11.IDLE, h11.DONE):
            self._stop("_arriving")  # between two requests, uvicorn's own timeout counts

    def _await_more(self) -> None:
        if self._arriving is None:
            self._arriving = self.loop.call_later(self.limits.patience_s, self.transport.abort)

    def _stop(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)

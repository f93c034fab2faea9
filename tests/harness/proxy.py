"""A TCP proxy that fails on demand: between a client and a server whose faults are to be survived.

    cut              connections are reset, and new ones too, until `heal`
    partition        bytes stay where they are, in both directions, until `heal`; new connections hang
    slow             every piece waits so long before it goes on
    lose_requests    the next n pieces from the client vanish, each with its connection: it was never asked for
    lose_responses   the same, from the server: it was done, and nobody was told
    ignore           requests of one kind (of Kafka's protocol) vanish, and all others are answered, until `heal`
    alter            the next n pieces from the server (None: all until `heal`) become what a function makes of them:
                     `instead`, `before` and `twice` make answers that nobody has asked for
    spoil            each answer of Kafka's protocol is replaced by what a function makes of it, until `heal`

`faults` counts what really happened, since a fault that did not happen proves nothing. A Kafka client is told by the
broker where the broker is: with `rewrite` the proxy puts its own port into the answers, so that each client can have a
proxy of its own in front of one broker.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

_PIECE = 1 << 16
_HOST = "127.0.0.1"

Direction = Literal["request", "response"]
Change = Callable[[bytes], bytes]


def instead(answer: bytes) -> Change:
    """This, and not what the server says."""
    return lambda _: answer


def before(answer: bytes) -> Change:
    """This, and then what the server says."""
    return lambda piece: answer + piece


def twice(piece: bytes) -> bytes:
    """What the server says, and once more."""
    return piece + piece


class Proxy:
    """Listens on a free port of the loopback interface, and passes bytes on to `upstream` there."""

    def __init__(self, upstream: int, rewrite: bool = False) -> None:
        """`upstream`: the server's port. `rewrite`: replace it by the proxy's in what the server says."""
        self.upstream = upstream
        self.faults: Counter[str] = Counter()
        """By kind: connections cut, refused or unreachable (the server is away), pieces held, delayed or lost."""
        self._rewrite = rewrite
        self._changed = threading.Condition()
        self._mode: Literal["pass", "cut", "partition"] = "pass"
        self._delay_s = 0.0
        self._losses: Counter[Direction] = Counter()
        self._ignored: int | None = None
        self._change: Change = bytes
        self._altered: int | None = 0
        self._spoil: Callable[[bytes], bytes] | None = None
        self._links: set[_Link] = set()
        self._closed = False
        self._listener = socket.create_server((_HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Reset every connection, until `heal`."""
        self._set("cut")
        self._reset_all("cut")

    def partition(self) -> None:
        """Hold every byte, until `heal`."""
        self._set("partition")

    def slow(self, delay_s: float) -> None:
        """Delay every piece, until `heal`."""
        with self._changed:
            self._delay_s = delay_s

    def lose_requests(self, count: int) -> None:
        """Drop the next `count` pieces from clients, and their connections."""
        with self._changed:
            self._losses["request"] += count

    def lose_responses(self, count: int) -> None:
        """Drop the next `count` pieces from the server, and their connections."""
        with self._changed:
            self._losses["response"] += count

    def ignore(self, request: int) -> None:
        """Drop each request that has this key in Kafka's protocol, until `heal`. The client goes on waiting."""
        with self._changed:
            self._ignored = request

    def alter(self, change: Change, count: int | None = 1) -> None:
        """Pass on what `change` makes of the next `count` pieces from the server, or of all until `heal`."""
        with self._changed:
            self._change, self._altered = change, count

    def spoil(self, spoil: Callable[[bytes], bytes]) -> None:
        """Send what this makes of each answer (its size, its number, and what it says), until `heal`; an empty one ends
        the connection. Of a proxy with `rewrite`."""
        with self._changed:
            self._spoil = spoil

    def heal(self) -> None:
        """Pass everything again; what was held goes on."""
        with self._changed:
            self._altered = 0
            self._ignored = self._spoil = None
            self._losses.clear()
            self._delay_s = 0.0
        self._set("pass")

    def wait_for(self, fault: str, count: int, timeout_s: float) -> bool:
        """Wait until a fault has happened so often."""
        with self._changed:
            return self._changed.wait_for(lambda: self.faults[fault] >= count, timeout_s)

    def close(self) -> None:
        """Stop listening, and end every connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._reset_all("closed")
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what the links ask ---

    def admit(self, direction: Direction) -> bool:
        """Wait until a piece may go on; False: it is lost, and the connection with it."""
        with self._changed:
            if self._losses[direction] > 0:
                self._losses[direction] -= 1
                self._count(f"lost {direction}")
                return False
            if self._mode == "partition":
                self._count("held")
                self._changed.wait_for(lambda: self._closed or self._mode != "partition")
            elif self._delay_s:
                self._count("delayed")
                self._changed.wait_for(lambda: self._closed or not self._delay_s, self._delay_s)
            return not self._closed and self._mode == "pass"

    def heeded(self, piece: bytes) -> bytes:
        """What of a piece from a client is not ignored. A client of Kafka sends whole requests, each after its size."""
        if self._ignored is None:
            return piece
        kept, start = b"", 0
        while len(piece) >= start + 6:
            size, key = struct.unpack_from(">ih", piece, start)
            end = start + 4 + size
            if key == self._ignored:
                with self._changed:
                    self._count("ignored")
            else:
                kept += piece[start:end]
            start = end
        return kept + piece[start:]

    def altered(self, piece: bytes) -> bytes:
        """What goes on in place of a piece from the server."""
        with self._changed:
            if self._altered == 0:
                return piece
            if self._altered is not None:
                self._altered -= 1
            self._count("altered")
            return self._change(piece)

    def spoilt(self, answer: bytes) -> bytes:
        """What is sent in place of a whole answer. Raises `OSError` where the connection is to end."""
        with self._changed:
            if self._spoil is None:
                return answer
            self._count("spoilt")
            made = self._spoil(answer)
        if not made:
            raise ConnectionAbortedError("the end of a connection instead of an answer")
        return made

    def ended(self, link: _Link) -> None:
        """A connection is over."""
        with self._changed:
            self._links.discard(link)

    # --- connections ---

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._closed:
                    client.close()
                    return
                if self._mode == "cut":
                    self._count("refused")
                    _reset(client)
                    continue
            try:
                server = socket.create_connection((_HOST, self.upstream))
            except OSError:
                with self._changed:
                    self._count("unreachable")
                _reset(client)
                continue
            found = replaced = b""
            if self._rewrite:
                found, replaced = (_HOST.encode() + struct.pack(">i", port) for port in (self.upstream, self.port))
            link = _Link(self, client, server, found, replaced)
            with self._changed:
                self._links.add(link)
            link.start()

    def _reset_all(self, reason: str) -> None:
        with self._changed:
            links = list(self._links)
            self.faults[reason] += len(links)
            self._changed.notify_all()
        for link in links:
            link.reset()

    def _set(self, mode: Literal["pass", "cut", "partition"]) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify_all()

    def _count(self, fault: str) -> None:
        self.faults[fault] += 1
        self._changed.notify_all()


class _Link:
    """One connection: two threads, one a direction."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, found: bytes, replaced: bytes
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._found, self._replaced = found, replaced
        self._open = 2
        self._lock = threading.Lock()
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Pass bytes on, in both directions."""
        for source, target, direction in (
            (self._client, self._server, "request"),
            (self._server, self._client, "response"),
        ):
            name = f"proxy-{self._proxy.port}-{direction}"
            threading.Thread(target=self._pump, args=(source, target, direction), name=name, daemon=True).start()

    def reset(self) -> None:
        """End it; both sides notice. The pumps close the sockets."""
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pump(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        pending = b""
        try:
            while piece := source.recv(_PIECE):
                if not self._proxy.admit(direction):
                    break
                if direction == "request":
                    piece = self._proxy.heeded(piece)
                if direction == "response" and self._found:
                    piece, pending = self._rewritten(pending + piece)
                if direction == "response":
                    piece = self._proxy.altered(piece)
                target.sendall(piece)
        except OSError:
            pass  # the other direction has ended it, or one of the two is gone
        finally:
            self.reset()
            self._finish()

    def _rewritten(self, data: bytes) -> tuple[bytes, bytes]:
        """The answers that are whole, with the port replaced, and the rest. Each begins with its length."""
        end, whole = 0, b""
        while len(data) >= end + 4 and len(data) >= (after := end + 4 + struct.unpack_from(">i", data, end)[0]):
            whole += self._proxy.spoilt(data[end:after].replace(self._found, self._replaced))
            end = after
        return whole, data[end:]

    def _finish(self) -> None:
        with self._lock:
            self._open -= 1
            over = not self._open
        if over:
            self._client.close()
            self._server.close()
            self._proxy.ended(self)


def _reset(connection: socket.socket) -> None:
    """Close with a reset instead of a goodbye."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

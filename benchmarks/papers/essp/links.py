"""Links of a given rate, and a Redis Cluster whose nodes are behind them, as if each were on a machine of its own.

A node announces the port of its link, so that clients reach it through the link alone. Each direction of a link carries
`rate` bytes per second for all connections together. Links are threads of this process.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from essp.servers.servers import RedisServer

_CHUNK = 64 * 1024
_SLOTS = 16_384
_WAIT_S = 0.05


class _Direction:
    """One direction of a link."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_s = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until `count` bytes have passed."""
        with self._lock:
            now_s = time.perf_counter()
            self._free_s = max(now_s, self._free_s) + count / self._rate
            wait_s = self._free_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)


class Link:
    """A port of this machine that leads to another one at a limited rate."""

    def __init__(self, rate: float) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._target = 0
        self._up, self._down = _Direction(rate), _Direction(rate)
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, port: int) -> None:
        """Where it leads; before any connection."""
        self._target = port

    def close(self) -> None:
        """End all connections."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                for source, sink, direction in ((near, far, self._up), (far, near, self._down)):
                    threading.Thread(target=_carry, args=(source, sink, direction), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket, direction: _Direction) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            direction.take(len(data))
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class _Node(RedisServer):
    """A node of a cluster that announces the port of its link. It owns the slots that it is given."""

    def __init__(self, directory: Path, link: Link) -> None:
        super().__init__(directory, cluster=True)
        self._link = link

    def _command(self) -> list[str]:
        own = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(self._link.port)]
        return [*super()._command(), *own, "--cluster-announce-bus-port", str(self.port + 10_000)]

    def _answers(self) -> bool:
        return self.execute("PING") == b"+PONG\r\n"


@contextmanager
def cluster(directory: Path, nodes: int, rate: float) -> Iterator[str]:
    """The URL of a cluster of `nodes` nodes, each behind its own link."""
    with ExitStack() as stack:
        links = [Link(rate) for _ in range(nodes)]
        for link in links:
            stack.callback(link.close)
        servers = []
        for number, link in enumerate(links):
            folder = directory / f"node-{number}"
            folder.mkdir(parents=True)
            servers.append(stack.enter_context(_Node(folder, link)))
            link.lead_to(servers[-1].port)
        for number, server in enumerate(servers):
            first, last = number * _SLOTS // nodes, (number + 1) * _SLOTS // nodes - 1
            server.execute("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for server in servers[1:]:
            bus = str(server.port + 10_000)
            servers[0].execute("CLUSTER", "MEET", "127.0.0.1", str(server.port), bus)
        while not all(b"cluster_state:ok" in server.execute("CLUSTER", "INFO") for server in servers):
            time.sleep(_WAIT_S)
        yield f"redis+cluster://127.0.0.1:{links[0].port}"

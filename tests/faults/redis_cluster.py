"""A Redis Cluster on this machine: three primaries with a third of the slots each, and a replica of the first."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from essp.servers.servers import RedisServer, free_port
from tests.faults.deployment import until

PRIMARIES = 3
NODE_TIMEOUT_MS = 2000
"""After so long without an answer a node counts as gone, and its replica takes over."""
_SLOTS = 16384


class Node(RedisServer):
    """One server of the cluster."""

    def __init__(self, directory: Path, maxmemory_bytes: int) -> None:
        super().__init__(directory, maxmemory_bytes=maxmemory_bytes, cluster=True)
        self.bus_port = 0

    def ask(self, *words: str) -> str:
        """The answer to one command, as text."""
        return self.execute(*words).decode()

    def pid(self) -> int:
        return int(self.ask("INFO", "server").partition("process_id:")[2].split()[0])

    def _command(self) -> list[str]:
        self.bus_port = free_port()  # a new one for each try, like `port`
        options = {"cluster-port": str(self.bus_port), "cluster-node-timeout": str(NODE_TIMEOUT_MS)}
        options |= {"repl-diskless-sync-delay": "0"}
        return [*super()._command(), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _answers(self) -> bool:
        return self.execute("PING") == b"+PONG\r\n"


class Cluster:
    """Up when entered."""

    def __init__(self, folder: Path, maxmemory_bytes: int) -> None:
        self.primaries = [Node(folder / f"primary-{number}", maxmemory_bytes) for number in range(PRIMARIES)]
        self.replica = Node(folder / "replica", maxmemory_bytes)
        self._started = ExitStack()

    @property
    def url(self) -> str:
        """Names the node that stays."""
        return self.primaries[-1].url

    def keys(self) -> str:
        """All keys, of the nodes that are there."""
        return "\n".join(node.ask("KEYS", "*") for node in self._nodes() if node.alive())

    def fail_over(self) -> None:
        """Kill the first primary, and wait until its replica has taken its slots."""
        first = self.primaries[0]
        os.kill(first.pid(), signal.SIGKILL)
        until("the primary is gone", lambda: not first.alive() or None)
        self.failed_over()

    @contextmanager
    def hangs(self) -> Iterator[None]:
        """The first primary takes connections, and answers nothing."""
        process = self.primaries[0].pid()
        os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process, signal.SIGCONT)

    def failed_over(self) -> None:
        """Wait until the replica has taken the slots of the first primary."""
        until("the replica is a primary", lambda: "role:master" in self.replica.ask("INFO", "replication") or None)
        until("the cluster serves all slots", lambda: self._whole(self.primaries[1]))

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for node in self._nodes():
                started.enter_context(node)
            self._join()
            self._started = started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()

    def _join(self) -> None:
        """Make one cluster of the nodes."""
        share = -(-_SLOTS // PRIMARIES)
        for number, node in enumerate(self.primaries):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(number * share), str(min(_SLOTS, (number + 1) * share) - 1))
        first = self.primaries[0]
        for node in self._nodes()[1:]:
            first.ask("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(node.bus_port))
        for node in self._nodes():
            until("all nodes know one another", partial(self._acquainted, node))
        known = first.ask("CLUSTER", "MYID").split()[1]
        until("the replica follows", lambda: self.replica.ask("CLUSTER", "REPLICATE", known) == "+OK\r\n" or None)
        until("it is in step", lambda: "master_link_status:up" in self.replica.ask("INFO", "replication") or None)
        for node in self._nodes():
            until("the cluster serves all slots", partial(self._whole, node))

    def _nodes(self) -> list[Node]:
        return [*self.primaries, self.replica]

    def _acquainted(self, node: Node) -> bool | None:
        known = node.ask("CLUSTER", "NODES")
        return (known.count(" connected") == len(self._nodes()) and "handshake" not in known) or None

    def _whole(self, node: Node) -> bool | None:
        return "cluster_state:ok" in node.ask("CLUSTER", "INFO") or None

"""Connections beside redis-py's go when the server that they are to leaves the cluster."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from redis import Connection, ConnectionPool
from redis.cluster import LoadBalancer, RedisCluster

from essp_common.cache.redis_connections import DirectConnections

OPEN: set[str] = set()


class Answering(Connection):
    """A connection to a server that answers its own name."""

    def connect(self) -> None:
        OPEN.add(self.host)

    def can_read(self, timeout: float | None = 0) -> bool:
        return False

    def has_more(self) -> bool:
        return False

    def has_unasked(self) -> bool:
        return False

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        """It arrives."""

    def read_response(self, *args: Any, **kwargs: Any) -> str:
        return str(self.host)

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        OPEN.discard(self.host)

    def __del__(self) -> None:
        self.disconnect()


class Cluster(RedisCluster):
    """Knows one server at a time, which holds all slots."""

    def __init__(self, host: str) -> None:
        self._lock = threading.RLock()
        self.nodes_manager: Any = SimpleNamespace(
            _lock=self._lock, _initialization_lock=threading.RLock(), read_load_balancer=LoadBalancer()
        )
        self.leads_to(host)

    def leads_to(self, host: str) -> None:
        self.known = SimpleNamespace(connection_pool=ConnectionPool(Answering, host=host, protocol=2))

    def get_node_from_key(self, key: str, replica: bool = False) -> Any:
        return key

    def get_redis_connection(self, node: Any) -> Any:
        return self.known

    def __del__(self) -> None:
        """It has nothing to close."""


def test_connections_to_a_server_that_left_the_cluster_are_closed() -> None:
    OPEN.clear()
    cluster = Cluster("first")
    direct = DirectConnections(cluster)
    assert direct.ask("key", ("GET", "key"), str, lambda: "otherwise") == "first"
    assert {"first"} == OPEN
    cluster.leads_to("second")
    assert direct.ask("key", ("GET", "key"), str, lambda: "otherwise") == "second"
    assert {"second"} == OPEN


def test_locks_of_a_cluster_that_another_thread_held_are_free_in_a_fork() -> None:
    cluster = Cluster("first")
    direct, nodes = DirectConnections(cluster), cluster.nodes_manager

    def locks() -> list[Any]:
        return [cluster._lock, nodes._lock, nodes._initialization_lock, nodes.read_load_balancer._lock]

    def take_all() -> None:
        for lock in locks():
            lock.acquire()

    thread = threading.Thread(target=take_all)
    thread.start()
    thread.join()
    assert not any(lock.acquire(blocking=False) for lock in locks())
    direct.forked()
    assert all(lock.acquire(blocking=False) for lock in locks())
    assert cluster._lock is nodes._lock

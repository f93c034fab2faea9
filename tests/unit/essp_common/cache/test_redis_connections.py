"""Connections beside redis-py's: those to a server that leaves the cluster are closed, and those whose answers are no
answers to what was asked."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from redis import Connection, ConnectionPool, Redis
from redis.cluster import LoadBalancer, RedisCluster

from essp_common.cache import redis as cache_redis
from essp_common.cache import redis_answers as answers
from essp_common.cache.redis_answers import WrongAnswer
from essp_common.cache.redis_connections import DirectConnections
from essp_common.cache.seal import Seal

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


def test_each_of_many_threads_has_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_redis, "PlainConnection", Answering)
    pool = cache_redis._single("redis://server/0", {}).connection_pool
    assert len({id(pool.get_connection()) for _ in range(300)}) == 300


class Scripted(Answering):
    """A connection by which these answers come."""

    coming: ClassVar[deque[object]] = deque()
    """Those that the server sends."""

    def pack_command(self, *args: object) -> list[bytes]:
        return [b"a command"]

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        """It arrives."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        return self.coming.popleft()

    def has_more(self) -> bool:
        return bool(self.coming)


def scripted(*coming: object) -> tuple[DirectConnections, ConnectionPool]:
    OPEN.clear()
    pool = ConnectionPool(Scripted, host="here", protocol=2)
    Scripted.coming = deque(coming)
    return DirectConnections(Redis.from_pool(pool)), pool


def test_an_answer_behind_which_more_comes_is_none() -> None:
    direct, _ = scripted(1, 2)
    assert direct.ask("key", ("DEL", "key"), answers.count, lambda: 3) == 3
    assert not OPEN, "it is closed"


def test_answers_before_a_wrong_one_may_be_those_of_other_commands() -> None:
    direct, _ = scripted(1, 2, b"none")
    commands = [("key", ("DEL", "key"))] * 3
    assert direct.ask_all(commands, answers.count, lambda place: 10 + place) == [10, 11, 12]
    assert not OPEN, "it is closed"


def test_where_the_other_way_is_answered_wrong_too_all_connections_are_closed() -> None:
    direct, pool = scripted(1)
    assert direct.ask("key", ("DEL", "key"), answers.count, lambda: b"none") == 1
    of_redis: Any = pool.get_connection()
    of_redis.host = "another"
    of_redis.connect()
    pool.release(of_redis)
    Scripted.coming.append(b"none")
    assert {"here", "another"} == OPEN
    with pytest.raises(WrongAnswer):
        direct.ask("key", ("DEL", "key"), answers.count, lambda: b"none")
    assert not OPEN


@pytest.mark.parametrize("answer", [1, 0, b"no", None, False, []])
def test_what_says_nothing_of_something_stored(answer: object) -> None:
    answers.stored(b"OK")
    with pytest.raises(WrongAnswer):
        answers.stored(answer)


@pytest.mark.parametrize("answer", [-1, True, b"1", None, 1.0])
def test_what_is_no_count(answer: object) -> None:
    assert answers.count(0) == 0
    with pytest.raises(WrongAnswer):
        answers.count(answer)


@pytest.mark.parametrize(
    ("part", "piece"), [((0, 4), 0), ((4, 7), 1), ((10, 13), 3), ((5, 8), None), ((4, 10), None), ((0, 3), None)]
)
def test_what_is_no_piece_cannot_be_checked_alone(part: tuple[int, int], piece: int | None) -> None:
    seal = Seal(0, b"", head_bytes=4, piece_bytes=3)
    assert seal.places([part]) == (None if piece is None else [piece])

"""Sends commands to Redis over connections of its own, past what redis-py does around each command.

A pool with checks and events, retries and telemetry take as long as a command that moves 150 kB to the next process. So
a command is tried once without them. If that fails, the caller's `otherwise` repeats it through redis-py, with its
retries, redirections and reconnects. The exception is a server of a cluster that does not answer in time: the command
fails, and the other servers are asked who holds the slots, for the next command.

Answers are those of the command before them, unless something between has put in or left out one. So a connection on
which something came unasked is closed before it is used, and one whose answer cannot be the asked for one
(`redis_answers.py`, or a value of another key) when that is seen. Then `otherwise` asks over another connection.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import redis
from redis.cluster import RedisCluster, get_node_name
from redis.connection import Connection, ConnectionPool
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from essp_common.cache.redis_answers import Check, WrongAnswer, understood
from essp_common.cache.seal import Unsound
from essp_common.runtime import forks

T = TypeVar("T")

_TOGETHER = 256
"""Commands that are sent before the first answer is read: few enough that neither side's socket fills up."""


class DirectConnections:
    """Idle connections of a client, at most one for each thread that used it at the same time. Thread-safe.

    The client's pools own the connections, and close them.
    """

    def __init__(self, client: redis.Redis | RedisCluster) -> None:
        self._client = client
        self._cluster = client if isinstance(client, RedisCluster) else None
        self._idle: WeakKeyDictionary[ConnectionPool, deque[Connection]] = WeakKeyDictionary()
        """Idle connections to each server. Those to one that leaves the cluster go with the client's pool of it."""
        self._renewing = threading.Lock()
        forks.follow(self)

    def ask(self, key: str, command: tuple[object, ...], check: Check[T], otherwise: Callable[[], Any]) -> T:
        """The answer to `command` of the server that holds `key`; `otherwise` gives it where this way fails.

        `check` makes of the answer what is returned. Raises what it raises of both answers; `OutOfMemoryError`, which
        is an answer; and redis-py's `TimeoutError`: a server that did not answer in time is not asked again, since that
        would take as long once more, and longer to connect.
        """
        try:
            pool = self._pool(key)
            return self._asked(pool, command, check)
        except OutOfMemoryError:
            raise
        except NoAnswer:
            self._renew(pool)
            raise
        except (RedisError, RedisClusterException, Unsound):
            return self._checked(check, otherwise)

    def ask_all(
        self, commands: Sequence[tuple[str, tuple[object, ...]]], check: Check[T], otherwise: Callable[[int], Any]
    ) -> list[T]:
        """The answers to (key, command) pairs, in their order. Up to 256 commands are sent before an answer is read.

        Commands have to be small, and so do the answers where there are many. `otherwise` is called with the place of
        each command that failed, and gives its answer.
        """
        answers: list[Any] = [None] * len(commands)
        pools: dict[ConnectionPool, list[int]] = {}
        for place, (key, _) in enumerate(commands):
            try:
                pools.setdefault(self._pool(key), []).append(place)
            except RedisClusterException:
                answers[place] = self._checked(check, partial(otherwise, place))
        for pool, places in pools.items():
            for begin in range(0, len(places), _TOGETHER):
                some = places[begin : begin + _TOGETHER]
                found = self._asked_all(pool, [commands[place][1] for place in some], check)
                for place, answer in zip(some, found, strict=True):
                    failed = isinstance(answer, RedisError | RedisClusterException)
                    answers[place] = self._checked(check, partial(otherwise, place)) if failed else answer
        return answers

    def drop(self) -> None:
        """Close all connections that nobody uses now: something is wrong with what comes by one of them."""
        for pool, idle in list(self._idle.items()):
            for _ in range(len(idle)):
                with suppress(IndexError):  # another thread uses it
                    connection: Any = idle.pop()
                    connection.disconnect()
                    idle.appendleft(connection)
            pool.disconnect(inuse_connections=False)

    def forked(self) -> None:
        """The connections are the parent's. redis-py's pools see to theirs by themselves, but not to a cluster's
        locks."""
        self._idle = WeakKeyDictionary()
        self._renewing = threading.Lock()
        if self._cluster is not None:
            nodes: Any = self._cluster.nodes_manager
            self._cluster._lock = nodes._lock = threading.RLock()
            nodes._initialization_lock = threading.RLock()
            nodes.read_load_balancer._lock = threading.Lock()

    def _checked(self, check: Check[T], otherwise: Callable[[], Any]) -> T:
        """The other way to an answer."""
        try:
            with understood():
                return check(otherwise())
        except (WrongAnswer, Unsound):
            self.drop()
            raise

    def _asked_all(self, pool: ConnectionPool, commands: Sequence[tuple[object, ...]], check: Check[T]) -> list[Any]:
        """For each command its answer or its error."""
        answers: list[Any] = []
        try:
            connection = self._taken(pool)
        except NoAnswer:
            self._renew(pool)
            raise
        except RedisError as error:
            return [error] * len(commands)
        try:
            packed = [piece for command in commands for piece in connection.pack_command(*command)]
            connection.send_packed_command([b"".join(packed)])
            with understood():
                while len(answers) < len(commands):
                    try:
                        answers.append(check(connection.read_response()))
                    except ResponseError as error:
                        answers.append(error)
            if connection.has_more():
                raise WrongAnswer(answers[-1], "no more than one answer to each command")
        except NoAnswer:
            self._renew(pool)
            raise
        except WrongAnswer as error:  # and those before it may be those of other commands
            connection.disconnect()
            answers = [error] * len(commands)
        except (RedisError, RedisClusterException) as error:
            answers += [error] * (len(commands) - len(answers))
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._idle_to(pool).append(connection)
        return answers

    def _taken(self, pool: ConnectionPool) -> Any:
        """A connection on which nothing has come unasked."""
        try:
            connection: Any = self._idle_to(pool).pop()
        except IndexError:
            return pool.get_connection()
        if connection.has_unasked():
            connection.disconnect()
        return connection

    def _asked(self, pool: ConnectionPool, command: tuple[object, ...], check: Check[T]) -> T:
        connection = self._taken(pool)
        try:
            connection.send_command(*command)
            with understood():
                answer = connection.read_response()
            if connection.has_more():
                raise WrongAnswer(answer, "one answer, and none after it,")
            return check(answer)
        except ResponseError:  # an answer, too
            raise
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._idle_to(pool).append(connection)

    def _idle_to(self, pool: ConnectionPool) -> deque[Connection]:
        return self._idle.setdefault(pool, deque())

    def _pool(self, key: str) -> ConnectionPool:
        """Raises `RedisClusterException` where no server of the cluster is known to hold the key's slot."""
        client: Any = self._client
        if self._cluster is not None:
            client = client.get_redis_connection(client.get_node_from_key(key))
        pool: ConnectionPool = client.connection_pool
        return pool

    def _renew(self, silent: ConnectionPool) -> None:
        """Learn who holds the slots of a cluster, asking this server last. One thread at a time does so."""
        if self._cluster is None or not self._renewing.acquire(blocking=False):
            return
        try:
            options = silent.connection_kwargs
            name = get_node_name(options["host"], options["port"])
            with suppress(RedisError, RedisClusterException):
                self._cluster.nodes_manager.initialize(disconnect_startup_nodes_pools=False, last_failed_node_name=name)
        finally:
            self._renewing.release()

"""Sends commands to Redis over its own connections, bypassing redis-py's overhead per command.

A pool with checks and events, retries and telemetry take as long as a command that moves 150 kB to the next process. So
a command is tried once without them. If that fails, the caller's `otherwise` repeats it through redis-py, with its
retries, redirections and reconnects. The exception is a server of a cluster that times out: the command fails, and the
other servers are asked for the owners of the slots, for the next command.

Answers arrive in the order of commands, unless something in between has inserted or dropped one. So a connection with
unrequested data is closed before it is used, and one that returns an impossible answer (`redis_answers.py`, or a value
of another key) as soon as that is detected. Then `otherwise` asks over another connection.
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
"""Commands sent before the first answer is read: few enough that neither side's socket fills up."""


class DirectConnections:
    """Idle connections of a client, at most one for each thread that used it concurrently. Thread-safe.

    The client's pools own the connections, and close them.
    """

    def __init__(self, client: redis.Redis | RedisCluster) -> None:
        self._client = client
        self._cluster = client if isinstance(client, RedisCluster) else None
        self._idle: WeakKeyDictionary[ConnectionPool, deque[Connection]] = WeakKeyDictionary()
        """Idle connections to each server. When a server leaves the cluster, they go with the client's pool."""
        self._renewing = threading.Lock()
        forks.follow(self)

    def ask(self, key: str, command: tuple[object, ...], check: Check[T], otherwise: Callable[[], Any]) -> T:
        """Return the answer to `command` from the server that holds `key`; `otherwise` provides it if this path fails.

        `check` converts the answer to the result. Raises what `check` raises for both answers; `OutOfMemoryError`,
        which is an answer; and redis-py's `TimeoutError`: a server that timed out is not asked again, since that would
        take as long once more, and even longer to connect.
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
        """Return the answers to (key, command) pairs, in order. Up to 256 commands are sent before an answer is read.

        Commands must be small, and so must the answers if there are many. `otherwise` is called with the index of each
        failed command, and returns its answer.
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
        """Close all unused connections: one of them has delivered wrong data."""
        for pool, idle in list(self._idle.items()):
            for _ in range(len(idle)):
                with suppress(IndexError):  # another thread uses it
                    connection: Any = idle.pop()
                    connection.disconnect()
                    idle.appendleft(connection)
            pool.disconnect(inuse_connections=False)

    def forked(self) -> None:
        """Drop the parent's connections. redis-py resets its own pools in a fork, but not a cluster's locks."""
        self._idle = WeakKeyDictionary()
        self._renewing = threading.Lock()
        if self._cluster is not None:
            nodes: Any = self._cluster.nodes_manager
            self._cluster._lock = nodes._lock = threading.RLock()
            nodes._initialization_lock = threading.RLock()
            nodes.read_load_balancer._lock = threading.Lock()

    def _checked(self, check: Check[T], otherwise: Callable[[], Any]) -> T:
        """Get an answer the other way."""
        try:
            with understood():
                return check(otherwise())
        except (WrongAnswer, Unsound):
            self.drop()
            raise

    def _asked_all(self, pool: ConnectionPool, commands: Sequence[tuple[object, ...]], check: Check[T]) -> list[Any]:
        """Return the answer or the error for each command."""
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
        except WrongAnswer as error:  # the previous answers may belong to other commands, too
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
        """Return a connection without unrequested data."""
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
        """Return the pool for a key. Raises `RedisClusterException` if no known server of the cluster holds its
        slot."""
        client: Any = self._client
        if self._cluster is not None:
            client = client.get_redis_connection(client.get_node_from_key(key))
        pool: ConnectionPool = client.connection_pool
        return pool

    def _renew(self, silent: ConnectionPool) -> None:
        """Learn which servers hold the slots of a cluster, asking this server last. One thread at a time does so."""
        if self._cluster is None or not self._renewing.acquire(blocking=False):
            return
        try:
            options = silent.connection_kwargs
            name = get_node_name(options["host"], options["port"])
            with suppress(RedisError, RedisClusterException):
                self._cluster.nodes_manager.initialize(disconnect_startup_nodes_pools=False, last_failed_node_name=name)
        finally:
            self._renewing.release()

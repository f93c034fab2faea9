"""One command at a time on a connection that is kept for that.

What redis-py does around a command (a pool with checks and events, retries, telemetry) takes as long as the command
itself, where that moves 150 kB to the next process. So `ask` tries once without all that; where that fails, the
caller's other way is gone: redis-py's, with its retries, redirections and reconnects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import redis
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError
from redis.exceptions import TimeoutError as NoAnswer


class Direct:
    """Connections of a client, as many as threads have asked at the same time. Thread-safe.

    They belong to the client's pools, and are closed with it.
    """

    def __init__(self, client: redis.Redis | RedisCluster) -> None:
        self._client = client
        self._clustered = isinstance(client, RedisCluster)
        self._idle: dict[ConnectionPool, deque[Connection]] = {}

    def ask(self, key: str, command: tuple[object, ...], otherwise: Callable[[], Any]) -> Any:
        """What the server that holds `key` answers to `command`. A lack of memory is an answer, raised as such.

        A server that did not answer in time is not asked again: it would take as long once more, and longer to connect.
        """
        try:
            return self._asked(self._pool(key), command)
        except (OutOfMemoryError, NoAnswer):
            raise
        except (RedisError, RedisClusterException):
            return otherwise()

    def _asked(self, pool: ConnectionPool, command: tuple[object, ...]) -> Any:
        idle = self._idle.setdefault(pool, deque())
        connection: Any
        try:
            connection = idle.pop()
        except IndexError:
            connection = pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        except BaseException as error:
            if not isinstance(error, RedisError):
                connection.disconnect()  # an answer may be left in it
            raise
        finally:
            idle.append(connection)

    def _pool(self, key: str) -> ConnectionPool:
        client: Any = self._client
        if self._clustered:
            client = client.get_redis_connection(client.get_node_from_key(key))
        pool: ConnectionPool = client.connection_pool
        return pool

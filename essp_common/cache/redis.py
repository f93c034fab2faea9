"""The frame cache over Redis or Valkey, 7 or later: `redis://` and `rediss://` (TLS), with `+cluster` for a cluster.

Each value is a string key, and beside it `<key>#waiting` is the set of consumers that have not acked. The braces
in `clip_key` keep both in one hash slot, so that one MULTI stores both or neither, on a cluster too; keys without
braces work on a single server only. The last ack frees both in one script.

Every write can be repeated with the same effect, so lost connections are retried here, for a moment; only
`ack`'s answer may then be False for the call that freed the key. A server that evicts or has no memory limit is
refused at start-up: frames would vanish unread, or the kernel would kill it. An out-of-memory answer is
`CacheFull`; no answer, a failover or a moving slot is `Unavailable`.

The database belongs to ESSP alone: `usage` counts everything in it. The URL of a cluster names any one node, and
finds the others by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool, PythonRespSerializer
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    CrossSlotTransactionError,
    NoPermissionError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
)
from redis.retry import Retry

from essp_common.cache.port import Buffer, CacheUsage
from essp_common.certificates import advised
from essp_common.errors import CacheFull, CacheMiss, ConfigError, Unavailable
from essp_common.failpoints import failpoint

_WAITING = "#waiting"
"""Ends the key of a consumer set. Names of streams have no `#`, so no value's key ends like this."""

_ACK = """
if redis.call('SREM', KEYS[2], ARGV[1]) == 0 or redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
return redis.call('UNLINK', KEYS[1])
"""

_LARGEST_VALUE = 512 * 2**20
"""Redis' own limit of one string (`proto-max-bulk-len`)."""

_SCAN_COUNT = 1000

_ACCESS = "check user and password in the URL, and that the user may use ~essp:* +@all -@dangerous +info"


def _argument(value: object) -> bytes | memoryview:
    return value if isinstance(value, bytes | memoryview) else str(value).encode()


# redis-py's serializer for hiredis copies a large value several times (5 ms instead of 0.5 for 2 MB); the one in
# Python hands a memoryview to the socket as it is. Answers are still parsed by hiredis.
_SERIALIZER = PythonRespSerializer(6000, _argument)

_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_timeout": 10.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "socket_read_size": 2 * 2**20,
}


class _ClusterConnection(Connection):
    """A connection with our serializer: `RedisCluster` passes on a class, but not that option."""

    def __init__(self, **options: Any) -> None:
        super().__init__(command_packer=_SERIALIZER, **options)  # type: ignore[no-untyped-call]


class RedisCache:
    """A `FrameCache` in a Redis server or cluster."""

    def __init__(self, client: redis.Redis | RedisCluster, where: str) -> None:
        """`where` names the server in messages; it holds no password. Raises `ConfigError`, `Unavailable`."""
        self._client = client
        self._where = where
        self._ack = client.register_script(_ACK)
        with self._errors():
            clustered = isinstance(client, RedisCluster)
            self._largest_bytes = min(_LARGEST_VALUE, *(_checked_limit(node, clustered) for node in self._nodes()))

    @classmethod
    def from_url(cls, url: str) -> RedisCache:
        """Connect, and check that the server is set up as a cache that loses nothing."""
        parts = urlsplit(url)
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        try:
            client = _cluster(url) if parts.scheme.endswith("+cluster") else _single(url)
        except RedisClusterException as error:
            if "Cluster mode is not enabled" in str(error):
                raise ConfigError(f"{where} is no cluster; use {where.replace('+cluster', '')}") from error
            if isinstance(error.__cause__, AuthenticationError):
                raise ConfigError(f"{where}: {error.__cause__}; {_ACCESS}") from error
            raise Unavailable(f"{where}: {advised(str(error))}") from error
        except ValueError as error:
            raise ConfigError(f"{where}: not a Redis URL ({error}); write redis://host:6379/0") from error
        return cls(client, where)

    def put(self, key: str, value: Buffer, consumers: Sequence[str], ttl_s: float) -> None:
        """Store value and consumer set in one transaction."""
        view = memoryview(value).cast("B")
        if view.nbytes > self._largest_bytes:
            raise ConfigError(
                f"{key}: a value of {view.nbytes} bytes can never fit, {self._where} takes {self._largest_bytes}; "
                "raise its maxmemory, choose codec jpeg, or make clips smaller"
            )
        ttl_ms = max(1, int(ttl_s * 1000))
        with self._errors():
            pipeline: Any = self._client.pipeline(transaction=True)
            pipeline.unlink(key + _WAITING)
            if consumers:
                pipeline.set(key, view, px=ttl_ms)
                pipeline.sadd(key + _WAITING, *consumers)
                pipeline.pexpire(key + _WAITING, ttl_ms)
            else:
                pipeline.unlink(key)
            pipeline.execute()
        failpoint("redis.stored")

    def get(self, key: str) -> Buffer:
        """The bytes of `key`."""
        with self._errors():
            value = self._client.get(key)
        if value is None:
            raise CacheMiss(f"{key} is not in the cache")
        return cast(bytes, value)

    def ack(self, key: str, consumer: str) -> bool:
        """Take the consumer off the set; free both keys when it was the last."""
        with self._errors():
            freed = bool(self._ack(keys=[key, key + _WAITING], args=[consumer]))
        failpoint("redis.acked")
        return freed

    def usage(self) -> CacheUsage:
        """Summed over the primaries. `full_count` is since the servers started."""
        keys = used_bytes = limit_bytes = full_count = 0
        with self._errors():
            for node in self._nodes():
                info = node.info("memory", "errorstats")
                # Every value has its consumer set beside it, and a refused `put` is one aborted transaction.
                keys += node.dbsize() // 2
                used_bytes += info["used_memory"]
                limit_bytes += info["maxmemory"]
                full_count += info.get("errorstat_EXECABORT", {"count": 0})["count"]
        return CacheUsage(keys, used_bytes, limit_bytes, full_count)

    def purge(self, prefix: str) -> int:
        """Walk the keys of every primary; what others store meanwhile may or may not be found."""
        pattern = "".join("\\" + c if c in "*?[]\\^-" else c for c in prefix) + "*"
        dropped = 0
        with self._errors():
            for node in self._nodes():
                cursor = -1
                while cursor:
                    cursor, keys = node.scan(max(0, cursor), match=pattern, count=_SCAN_COUNT)
                    dropped += _unlink(node, cast(list[bytes], keys))
        return dropped

    def close(self) -> None:
        """Release connections."""
        self._client.close()

    def _nodes(self) -> list[redis.Redis]:
        """A client of each server that holds keys."""
        if isinstance(self._client, RedisCluster):
            primaries = self._client.get_primaries()  # type: ignore[no-untyped-call]
            return [self._client.get_redis_connection(node) for node in primaries]
        return [self._client]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """redis-py's errors as ours."""
        try:
            yield
        except OutOfMemoryError as error:
            raise CacheFull(f"{self._where} has no room") from error
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise ConfigError(f"{self._where}: {error}; {_ACCESS}") from error
        except CrossSlotTransactionError as error:
            raise ConfigError(f"{self._where}: {error}; keys on a cluster come from `clip_key`") from error
        except (RedisError, RedisClusterException) as error:
            if "MISCONF" in str(error):
                remedy = 'a frame cache needs no snapshots: redis-cli CONFIG SET save ""'
                raise ConfigError(f"{self._where} refuses writes since it cannot save to disk; {remedy}") from error
            raise Unavailable(f"{self._where}: {advised(str(error))}") from error


def _single(url: str) -> redis.Redis:
    pool = ConnectionPool.from_url(
        url, command_packer=_SERIALIZER, health_check_interval=30, retry=_retry(), **_OPTIONS
    )
    return redis.Redis.from_pool(pool)


def _cluster(url: str) -> RedisCluster:
    return RedisCluster.from_url(
        url.replace("+cluster", "", 1), connection_class=_ClusterConnection, retry=_retry(), **_OPTIONS
    )


def _retry() -> Retry:
    return Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.5), retries=3)


def _checked_limit(node: redis.Redis, clustered: bool) -> int:
    """The server's memory limit. Raises `ConfigError`, with the command that mends it, where it could lose frames."""
    info = node.info("memory", "cluster")
    options = node.get_connection_kwargs()
    cli = f"redis-cli -h {options['host']} -p {options['port']}"
    problems = []
    if not info["maxmemory"]:
        problems.append(f"maxmemory is 0, so it grows until the kernel kills it: {cli} CONFIG SET maxmemory 4gb")
    if info["maxmemory_policy"] != "noeviction":
        problems.append(
            f"maxmemory-policy is {info['maxmemory_policy']}, so it drops frames that nobody has read: "
            f"{cli} CONFIG SET maxmemory-policy noeviction"
        )
    if info["cluster_enabled"] and not clustered:
        problems.append("it is a node of a cluster: use redis+cluster://")
    if problems:
        raise ConfigError(f"Redis at {options['host']}:{options['port']}: " + "; ".join(problems))
    return int(info["maxmemory"])


def _unlink(node: redis.Redis, keys: Sequence[bytes]) -> int:
    """Free these keys, one command each since they lie in different slots; how many were values."""
    pipeline = node.pipeline(transaction=False)
    for key in keys:
        pipeline.unlink(key)
    freed = pipeline.execute()
    return sum(count for key, count in zip(keys, freed, strict=True) if not key.endswith(_WAITING.encode()))

"""Checks Redis: is it recent enough, does it have free memory and evict nothing, does a value come back?"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import RedisError
from redis.retry import Retry

from essp.doctor.finding import CONNECT_S, Finding, clock, fail, ok, unreachable, warn
from essp_common.cache.port import of_tenant
from essp_common.cache.redis import RedisCache
from essp_common.cache.redis_url import parted
from essp_common.errors import Unavailable
from essp_common.quantities import size

CHECK = "redis"
OLDEST = 7
ROOM = 0.1
"""Fraction of the memory that should be free."""
_ANSWER_S = 3.0


def examine(url: str, tenant: str = "") -> Iterator[Finding]:
    """Check the cache at `url`, and a tenant's part of it. Raises `EsspError` if a check cannot continue."""
    deaf = unreachable(CHECK, urlsplit(url).netloc.rpartition("@")[2], 6379, "ESSP_CACHE")
    if deaf is not None:
        yield deaf
        return
    refused = False
    try:
        for node in _nodes(url):
            asked = time.time()
            seconds, micros = node.time()
            yield clock("Redis", seconds + micros / 1e6, asked)
            for finding in _server(node):
                refused |= finding.level == "fail"
                yield finding
    except RedisError as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    if not refused:
        yield _round_trip(url, tenant)


def _nodes(url: str) -> list[Any]:
    """A client for each server that holds keys. redis-py's types are imprecise."""
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": _ANSWER_S,
        "retry": Retry(NoBackoff(), 0),
    }
    url, login = parted(url)
    options |= login
    if not urlsplit(url).scheme.endswith("+cluster"):
        return [redis.Redis.from_url(url, **options)]
    cluster: Any = RedisCluster.from_url(url.replace("+cluster", "", 1), **options)
    return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]


def _server(node: Any) -> Iterator[Finding]:
    server, memory = node.info("server"), node.info("memory")
    kwargs = node.get_connection_kwargs()
    where = f"{kwargs['host']}:{kwargs['port']}"
    cli = f"redis-cli -h {kwargs['host']} -p {kwargs['port']}"
    version = server["redis_version"]
    if int(version.partition(".")[0]) < OLDEST:
        yield fail(CHECK, f"{where} is version {version}", f"ESSP needs Redis or Valkey {OLDEST} or later")
    else:
        yield ok(CHECK, f"{where} is version {version}")
    if memory["maxmemory_policy"] != "noeviction":
        yield fail(
            CHECK,
            f"{where} has maxmemory-policy {memory['maxmemory_policy']}: it evicts frames before they are read",
            f"{cli} CONFIG SET maxmemory-policy noeviction",
        )
    limit, used = memory["maxmemory"], memory["used_memory"]
    if not limit:
        remedy = f"{cli} CONFIG SET maxmemory 4gb"
        yield fail(CHECK, f"{where} has no maxmemory: it grows until the kernel kills it", remedy)
    elif limit - used < ROOM * limit:
        yield warn(
            CHECK,
            f"{where} has {size(limit - used)} of {size(limit)} free",
            "raise maxmemory, or lower `limits.budget` of the jobs; if no job is running, find out what else uses it",
        )
    else:
        yield ok(CHECK, f"{where} has {size(limit - used)} of {size(limit)} free and evicts nothing")


def _round_trip(url: str, tenant: str) -> Finding:
    """Put a value, read it and free it, through the adapter that services use."""
    key, value, began = of_tenant(tenant, f"essp:.doctor:{{{uuid.uuid4().hex}}}"), b"doctor", time.monotonic()
    with closing(RedisCache.from_url(url)) as cache:
        cache.put(key, value, ["doctor"], ttl_s=60)
        same = bytes(cache.get(key)) == value
        freed = cache.ack(key, "doctor")
    if same and freed:
        return ok(CHECK, f"a value came back and was freed in {1000 * (time.monotonic() - began):.0f} ms")
    return fail(CHECK, "a value came back changed", "remove any proxy that rewrites commands")

"""Opens the adapter that a URL names.

No other module names concrete adapters. They are named by import string, so that a client library is loaded only if a
URL asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.cache.port import FrameCache
from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.runtime.config import NOBODY, Login, Settings

BUSES = {
    "memory": "essp_common.bus.memory:MemoryBus",
    "kafka": "essp_common.bus.kafka:KafkaBus",
    "kafka+ssl": "essp_common.bus.kafka:KafkaBus",
}
CACHES = {
    "memory": "essp_common.cache.memory:MemoryCache",
    "redis": "essp_common.cache.redis:RedisCache",
    "rediss": "essp_common.cache.redis:RedisCache",
    "redis+cluster": "essp_common.cache.redis:RedisCache",
    "rediss+cluster": "essp_common.cache.redis:RedisCache",
}
STORES = {
    "file": "essp_common.objects.directory:DirectoryStore",
    "s3": "essp_common.objects.s3:S3Store",
}


def _adapter(kind: str, table: Mapping[str, str], url: str) -> Any:
    scheme = urlsplit(url).scheme
    if scheme not in table:
        known = ", ".join(f"{name}://" for name in table)
        raise ConfigError(f"{kind} URL {url!r}: unknown scheme; use one of {known}")
    module, _, name = table[scheme].partition(":")
    with needs_extra(f"{scheme}://"):
        return getattr(import_module(module), name)


def open_bus(url: str, login: Login = NOBODY) -> Bus:
    """The bus at `memory://`, `kafka://host:port[,...]` or, with TLS, `kafka+ssl://...`."""
    kind = _adapter("bus", BUSES, url)
    bus: Bus = kind.from_url(url) if url.startswith("memory:") else kind.from_url(url, login)
    return bus


def open_cache(url: str) -> FrameCache:
    """The frame cache at `memory://?bytes=N`, `redis://...` or `redis+cluster://...`."""
    cache: FrameCache = _adapter("cache", CACHES, url).from_url(url)
    return cache


def open_store(url: str) -> ObjectStore:
    """The object store rooted at `file:///dir` or `s3://bucket/prefix`."""
    store: ObjectStore = _adapter("object store", STORES, url).from_url(url)
    return store


def _folder(uri: str) -> str:
    return uri if uri.endswith("/") else uri + "/"


class Stores:
    """The object stores that a process may use. URIs outside the configured roots are refused."""

    def __init__(self, roots: Sequence[str]) -> None:
        """`roots`: `file:///dir` or `s3://bucket/prefix`, with `?endpoint=...` if it is not Amazon's."""
        self._roots = {_folder(root.partition("?")[0]): root for root in roots}
        self._open: dict[str, ObjectStore] = {}
        self._lock = threading.Lock()

    def resolve(self, uri: str) -> tuple[ObjectStore, str]:
        """The store that holds `uri`, and the key in it. Raises `NotFound` if `uri` lies in no configured root."""
        for prefix in sorted(self._roots, key=len, reverse=True):
            if uri.startswith(prefix):
                return self._store(prefix), uri[len(prefix) :]
        roots = ", ".join(self._roots) or "none"
        raise NotFound(f"{uri} lies in no configured store (ESSP_STORES: {roots})")

    def under(self, uri: str) -> ObjectStore:
        """A store rooted at `uri` itself. Raises `ConfigError` if `uri` lies in no configured root."""
        uri = _folder(uri)
        for prefix in sorted(self._roots, key=len, reverse=True):
            if uri.startswith(prefix):
                query = self._roots[prefix].partition("?")[2]
                return open_store(uri + (f"?{query}" if query else ""))
        roots = ", ".join(self._roots) or "none"
        raise ConfigError(f"{uri} lies in no configured store; add its root to ESSP_STORES (now: {roots})")

    def _store(self, prefix: str) -> ObjectStore:
        with self._lock:
            if prefix not in self._open:
                self._open[prefix] = open_store(self._roots[prefix])
            return self._open[prefix]


@dataclass(frozen=True)
class Adapters:
    """The bus, frame cache and object stores of a service."""

    bus: Bus
    cache: FrameCache
    stores: Stores

    @classmethod
    def from_settings(cls, settings: Settings) -> Adapters:
        """Open the adapters that the settings name, and create the topics."""
        bus = open_bus(settings.bus, settings.bus_login)
        bus.ensure_topics({t: topics.partitions(t) for t in topics.FIXED})
        return cls(bus, open_cache(settings.cache), Stores(settings.stores))

    def close(self) -> None:
        """Close the bus and the cache."""
        self.bus.close()
        self.cache.close()

"""Opens the adapter that a URL names.

No other module names concrete adapters. They are named by import string, so a client library is loaded only if a URL
needs it. A decoder's child process imports this module each time it starts, so it must load quickly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.bus.tenant import TenantBus
from essp_common.cache.port import FrameCache
from essp_common.cache.tenant import TenantCache
from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.archive import Archive, is_member
from essp_common.objects.frames import FrameFolders, is_series
from essp_common.objects.patient import Patience, PatientStore
from essp_common.objects.port import ObjectStore
from essp_common.objects.uris import Place, place_of
from essp_common.runtime import logs
from essp_common.runtime.addresses import shown_address, shown_uri, without_password
from essp_common.runtime.forks import Mutex
from essp_common.runtime.login import NOBODY, Login
from essp_common.runtime.troubles import Kind, Troubles

_FILESYSTEMS = "essp_common.objects.filesystems:FilesystemStore"
_BY_NAME = "fsspec+"

BUSES = {
    "memory": "essp_common.bus.memory:MemoryBus",
    "kafka": "essp_common.bus.kafka:KafkaBus",
    "kafka+ssl": "essp_common.bus.kafka:KafkaBus",
}
CACHES = {
    "memory": "essp_common.cache.memory:MemoryCache",
    "shm": "essp_common.cache.shm:SharedMemoryCache",
    "redis": "essp_common.cache.redis:RedisCache",
    "rediss": "essp_common.cache.redis:RedisCache",
    "redis+cluster": "essp_common.cache.redis:RedisCache",
    "rediss+cluster": "essp_common.cache.redis:RedisCache",
}
STORES = {
    "file": "essp_common.objects.directory:DirectoryStore",
    "s3": "essp_common.objects.s3:S3Store",
    **dict.fromkeys(
        ("gs", "gcs", "az", "abfs", "abfss", "adl", "hdfs", "webhdfs", "http", "https", "sftp", "hf"), _FILESYSTEMS
    ),
}


def checked_scheme(kind: str, table: Mapping[str, str], url: str) -> str:
    """The scheme of a URL. Raises `ConfigError` if no adapter in `table` has it."""
    scheme = url.partition(":")[0].lower()
    if scheme not in table:
        known = ", ".join(f"{name}://" for name in table)
        raise ConfigError(f"{kind} URL {shown_address(url)!r}: unknown scheme; use one of {known}", code="unknown")
    return scheme


def _adapter(kind: str, table: Mapping[str, str], url: str) -> Any:
    scheme = checked_scheme(kind, table, url)
    module, _, name = table[scheme].partition(":")
    with needs_extra(f"{scheme}://"):
        return getattr(import_module(module), name)


def open_bus(url: str, login: Login = NOBODY, tenant: str = "", partitions: int = topics.DATA_PARTITIONS) -> Bus:
    """The bus at `memory://`, `kafka://host:port[,...]` or, with TLS, `kafka+ssl://...`; with a tenant, its part of the
    bus. `partitions`: of its data topics."""
    kind = _adapter("bus", BUSES, url)
    login_of = {} if url.startswith("memory:") else {"login": login}
    bus: Bus = kind.from_url(url, partitions=partitions, **login_of)
    return TenantBus(bus, tenant) if tenant else bus


def open_cache(url: str, tenant: str = "") -> FrameCache:
    """The frame cache at `memory://?bytes=N`, `shm://NAME?bytes=N`, `redis://...` or `redis+cluster://...`; with a
    tenant, its part of the cache."""
    cache: FrameCache = _adapter("cache", CACHES, url).from_url(url)
    return TenantCache(cache, tenant) if tenant else cache


def open_store(url: str) -> ObjectStore:
    """The object store rooted at `file:///dir` or `s3://bucket/prefix`, or a read-only one (`filesystems.py`)."""
    store: ObjectStore = _adapter("object store", stores_of(url), url).from_url(url)
    return store


def stores_of(url: str) -> Mapping[str, str]:
    """The adapters of stores, including the fsspec file system that this URL names."""
    scheme = url.partition(":")[0].lower()
    return {**STORES, scheme: _FILESYSTEMS} if scheme.startswith(_BY_NAME) else STORES


class Stores:
    """The object stores that a process may use. URIs outside the configured roots are refused.

    URIs come from users: from jobs, catalogs, models, command lines and the API. They are normalised first
    (`essp_common.objects.uris`), and never become part of the URL with which a store is opened.
    """

    def __init__(self, roots: Sequence[str], patience_s: float = 0.0) -> None:
        """`roots`: `file:///dir` or `s3://bucket/prefix`, with `?endpoint=...` if it is not Amazon's; for reading also
        `gs://`, `az://`, `hdfs://`, `https://` and others. `patience_s`: how long requests wait for a store that does
        not answer (`essp_common.objects.patient`).

        Raises `ConfigError` for an invalid root, and for one that is there twice with different options.
        """
        places: dict[Place, str] = {}
        for root in roots:
            place = _root_place(root)
            if _options(places.get(place, root)) != _options(root):
                raise ConfigError(
                    f"{shown_uri(str(place))} is there twice, with different options; leave one out",
                    field="ESSP_STORES",
                    code="conflict",
                )
            places[place] = root
        self._roots = dict(sorted(places.items(), key=lambda item: len(item[0].parts), reverse=True))
        """Innermost first."""
        self._patience = Patience(patience_s) if patience_s else None
        self._open: dict[Place, ObjectStore] = {}
        self._lock = Mutex()

    def resolve(self, uri: str, video: bool = False) -> tuple[ObjectStore, str]:
        """The store that holds `uri`, and the key in it. Raises `NotFound` if `uri` is not in a configured root.

        `video`: `uri` is a video, whose name may contain any character. Raises `ConfigError` if `uri` is not a valid
        URI; for a video `NotFound`, because only this one video is affected.
        """
        try:
            root, key = self._within(place_of(uri, video))
        except ConfigError as error:
            if not video:
                raise
            raise NotFound(str(error)) from error
        store = self._store(root)
        if video and is_member(key):
            return Archive(store), key
        return (FrameFolders(store) if video and is_series(key) else store), key

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        """A store rooted at the folder `uri`. Raises `ConfigError` if `uri` is not in a configured root or not a URI.

        `videos`: it is a folder of videos, whose name may contain any character.
        """
        try:
            root, key = self._within(place_of(uri, videos))
        except NotFound as error:
            raise ConfigError(str(error), code="refused") from error
        store = self._store(root)
        return store.below(key) if key else store

    def root_of(self, uri: str) -> str:
        """The configured root that holds `uri`. Raises `ConfigError`, `NotFound` as `resolve` does."""
        return str(self._within(place_of(uri))[0])

    def stop_waiting(self) -> None:
        """Requests that wait for a store fail, and so does each one that a store does not answer from now on."""
        if self._patience is not None:
            self._patience.end()

    def troubles(self) -> Troubles:
        """The problems that keep the open stores from working."""
        with self._lock.held:
            stores = list(self._open.values())
        found: dict[Kind, str] = {}
        for store in stores:
            found |= store.troubles()
        return found

    def _within(self, place: Place) -> tuple[Place, str]:
        """The configured root that contains a place, and the key in it."""
        place = replace(place, authority=without_password(place.authority))
        for root in self._roots:
            if (key := place.below(root)) is not None:
                return root, key
        # Show only scheme and authority: the caller may be anyone who can start a job, and must not learn where in a
        # bucket or on a disk a root is.
        roots = (
            ", ".join(sorted({shown_address(f"{root.scheme}://{root.authority}") for root in self._roots})) or "none"
        )
        raise NotFound(
            f"{shown_uri(str(place))} is in no configured store; add its root to ESSP_STORES (now some of: {roots}), "
            f"with commas between roots, as in ESSP_STORES={_suggested_roots(place)}"
        )

    def _store(self, root: Place) -> ObjectStore:
        with self._lock.held:
            if root not in self._open:
                store = open_store(self._roots[root])
                self._open[root] = PatientStore(store, self._patience) if self._patience is not None else store
            return self._open[root]


def _suggested_roots(place: Place) -> str:
    """The roots with which users can read from the store of a place, and their own files."""
    if place.scheme == "file":
        return "file:///"
    parts = place.parts[:2] if place.scheme == "hf" else ()  # a data set of the Hub is OWNER/NAME
    return "file:///," + shown_address("/".join((f"{place.scheme}://{place.authority}", *parts)))


def _options(root: str) -> str:
    return root.partition("?")[2]


def _root_place(root: str) -> Place:
    try:
        place = place_of(root.partition("?")[0], video=True)
        return replace(place, authority=without_password(place.authority))
    except ConfigError as error:
        raise ConfigError(str(error), field="ESSP_STORES") from error


class Servers(Protocol):
    """The addresses of the servers: the part of a process's settings (`essp_common.runtime.config`) that this module
    needs."""

    @property
    def bus(self) -> str: ...

    @property
    def bus_login(self) -> Login: ...

    @property
    def cache(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def partitions(self) -> int: ...

    @property
    def stores(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Adapters:
    """The bus, frame cache and object stores of a service."""

    bus: Bus
    cache: FrameCache
    stores: Stores

    @classmethod
    def from_settings(cls, settings: Servers) -> Adapters:
        """Open the adapters that the settings name, and create the topics."""
        stores = Stores(settings.stores)
        bus = open_bus(settings.bus, settings.bus_login, settings.tenant, settings.partitions)
        try:
            bus.ensure_topics({t: topics.partitions(t, bus.partitions) for t in topics.FIXED})
            return cls(bus, open_cache(settings.cache, settings.tenant), stores)
        except BaseException:
            bus.close()
            raise

    def troubles(self) -> Troubles:
        """The known problems of this process's servers and of writing its log."""
        return {**logs.troubles(), **self.stores.troubles(), **self.cache.troubles(), **self.bus.troubles()}

    def close(self) -> None:
        """Close the bus and the cache. Raises if the bus could not deliver something; the cache is closed even then."""
        try:
            self.bus.close()
        finally:
            self.cache.close()

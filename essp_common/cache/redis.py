"""The frame cache over Redis or Valkey, 7 or later: `redis://` and `rediss://` (TLS), with `+cluster` for a cluster.

Each value is one string key, which begins with the names of the consumers that have not acked (`label.py`): one SET
stores it, one GET reads it, and the last ack frees it in a script.

Every write is idempotent, so this module retries briefly after lost connections; only the answer of `ack` may then be
False for the call that freed the key. Each answer is validated before it is used (`redis_answers.py`), and each value
proves that it belongs to its key (`seal.py`). If an answer does not belong to its command, its connection is closed,
and the command is repeated over another one; a value that is still not sound is removed, and counts as a miss.

A server that evicts or has no memory limit is refused at start-up: frames would vanish unread, or the kernel would kill
the server. Each `usage` checks that again, since a server can be reconfigured while it runs; then `troubles` reports
it, and work continues. `troubles` also reports a server that has not answered for a long time. An out-of-memory answer
is `CacheFull`; no answer, a failover or a moving slot is `FlowUnavailable`.

A missing password or permission is a `ConfigError` at start-up. One that is revoked later is `FlowUnavailable`, like
everything else that Redis refuses (`redis_refusals.py`): work waits until it is granted, and `troubles` reports the
refusal with a remedy. No clip is blamed. A password in a file (`redis_url.py`) may change in the meantime.

The database belongs to ESSP alone: `usage` counts everything in it. The URL of a cluster names any one node; the others
are discovered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError
from redis.retry import Retry

from essp_common.cache import redis_answers as answers
from essp_common.cache.damage import Damage
from essp_common.cache.label import ACK, SEALED, UNIT, is_sealed, label, label_bytes, opened, seal_in
from essp_common.cache.port import Buffer, CacheUsage, Part, Summed
from essp_common.cache.redis_answers import WrongAnswer, understood
from essp_common.cache.redis_connections import DirectConnections
from essp_common.cache.redis_refusals import is_of_another_type, refusal_of, unknown
from essp_common.cache.redis_url import TwoPasswords, parted
from essp_common.cache.redis_wire import Labelled, PlainConnection, TlsConnection
from essp_common.cache.seal import Foreign, OfOtherRelease, Seal, Unsound
from essp_common.errors import CacheFull, CacheMiss, ConfigError, EsspError, FlowUnavailable, PermanentError
from essp_common.runtime.addresses import checked_address, shown_address
from essp_common.runtime.certificates import advised
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.refusals import Refusals
from essp_common.runtime.silence import Silence
from essp_common.runtime.troubles import LASTS_S, Kind, Troubles

_LARGEST_VALUE = 512 * 2**20
"""Redis' own limit for one string (`proto-max-bulk-len`)."""

_SCAN_COUNT = 1000

_DENIED_RETRY_S = 1.0
_UNKNOWN_S = 600.0
"""How long to wait out an unknown answer before the call fails with it."""
_WRITES = "writes"
"""All calls that write, for a server that refuses them together."""

_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_timeout": 10.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "socket_read_size": 2**14,
    "max_connections": 2**31,  # one for each thread; redis-py's own limit is 100
}


class RedisCache:
    """A `FrameCache` in a Redis server or cluster."""

    def __init__(
        self, client: redis.Redis | RedisCluster, where: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`where` names the server in messages, without a password. Raises `ConfigError`, `FlowUnavailable`."""
        self._client = client
        self._direct = DirectConnections(client)
        self._where = where
        self._ack = client.register_script(ACK)
        self._label_bytes = UNIT
        """Label length of the last value that was read in parts: the next one usually has the same."""
        self._evicts = ""
        self._refusals = Refusals(clock)
        self._said = ""
        """Why the last failed call failed."""
        self._silence = Silence(clock)
        self._silence_of_all = Silence(clock)
        """The silence of `usage`, which asks every node of a cluster."""
        self._damage = Damage(where, clock)
        try:
            with self._errors("set up"):
                clustered = isinstance(client, RedisCluster)
                self._largest_bytes = min(_LARGEST_VALUE, *(_checked_limit(node, clustered) for node in self._nodes()))
        except _Denied as error:
            raise ConfigError(str(error), code="conflict") from error.__cause__

    @classmethod
    def from_url(cls, url: str) -> RedisCache:
        """Connect, and check that the server is set up as a cache that loses nothing."""
        try:
            parts = urlsplit(checked_address(url))
        except ValueError as error:
            raise ConfigError(f"cache URL {shown_address(url)!r}: {error}") from None
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        try:
            plain, login = parted(url)
            client = _cluster(plain, login) if parts.scheme.endswith("+cluster") else _single(plain, login)
        except RedisClusterException as error:
            if "Cluster mode is not enabled" in str(error):
                raise ConfigError(
                    f"{where} is not a cluster; use {where.replace('+cluster', '')}", code="unsupported"
                ) from error
            refusal = refusal_of(error)
            if refusal is not None and refusal.denied:
                raise ConfigError(f"{where}{refusal.words}", code="refused") from error
            raise FlowUnavailable(f"{where}: {advised(str(error))}") from error
        except ValueError as error:
            # Not the library's message: it quotes options, and what it took for a database.
            both = f" ({error})" if isinstance(error, TwoPasswords) else ""
            raise ConfigError(f"{where}: not a Redis URL{both}; write redis://host:6379/0") from None
        return cls(client, where)

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        """Store the value with its label."""
        view = memoryview(value.value if isinstance(value, Summed) else value).cast("B")
        if view.nbytes > self._largest_bytes:
            raise ConfigError(
                f"{key}: a value of {view.nbytes} bytes can never fit, {self._where} takes {self._largest_bytes}; "
                "raise its maxmemory, choose codec jpeg, or make clips smaller",
                code="range",
            )
        with self._errors("put"):
            if consumers:
                client: Any = self._client
                labelled = Labelled(label(Seal.of(key, value), tuple(consumers)), view)
                command = ("SET", key, labelled, "PX", max(1, int(ttl_s * 1000)))
                self._direct.ask(key, command, answers.stored, lambda: client.execute_command(*command))
            else:
                self._unlink(key)
        self._refusals.works(_WRITES)
        failpoint("redis.stored")

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        """Return the bytes of `key`, or parts of them."""
        try:
            found = self._get_parts(key, parts) if parts else None
            return self._get_whole(key, parts) if found is None else found
        except Unsound as error:
            if not isinstance(error, OfOtherRelease):
                with suppress(EsspError), self._errors("put"):  # otherwise each of its readers finds out again
                    self._unlink(key)
            raise self._damage.found(key, error) from error

    def _get_whole(self, key: str, parts: Sequence[Part]) -> Buffer:
        """Read the whole value. Raises `Unsound` if it is damaged over another connection as well."""
        with self._errors("get", of_value=True):
            value = self._direct.ask(key, ("GET", key), partial(_opened, key), lambda: self._client.get(key))
        if value is None:
            raise CacheMiss(f"{key} is not in the cache")
        return b"".join(value[begin:end] for begin, end in parts) if parts else value

    def _get_parts(self, key: str, parts: Sequence[Part]) -> Buffer | None:
        """Read parts of a value. Returns None if they cannot be checked alone or are damaged, so that all of it must be
        read.

        The offset of parts depends on the length of the label, which is guessed, and requested together with the parts.
        The label contains their checksums, so parts of a value that is stored concurrently are not mistaken for them.
        """
        size = self._label_bytes  # a local copy: other threads read other values
        named, *found = self._ranges(key, parts, size)
        if (told := label_bytes(named)) and told != size:
            self._label_bytes = size = told
            named, *found = self._ranges(key, parts, size)
        if not named:
            raise CacheMiss(f"{key} is not in the cache")
        try:
            seal = seal_in(named)
            places = seal.places(parts)
            if places is not None:
                seal.check_pieces(key, places, found)
        except Unsound:
            return None
        return None if places is None else b"".join(found)

    def _ranges(self, key: str, parts: Sequence[Part], size: int) -> list[bytes]:
        """Request a label of `size` bytes, and the parts behind it, together."""
        places = [(0, size - 1), *((size + begin, size + end - 1) for begin, end in parts)]
        with self._errors("get of parts", of_value=True):
            client: Any = self._client
            commands = [(key, ("GETRANGE", key, *place)) for place in places]
            return self._direct.ask_all(commands, answers.text, lambda place: client.getrange(key, *places[place]))

    def holds(self, key: str) -> bool:
        """Whether the key has a label of this release."""
        command = ("GETRANGE", key, 0, SEALED - 1)
        client: Any = self._client
        with suppress(Unsound), self._errors("look", of_value=True):
            begin = self._direct.ask(key, command, answers.text, lambda: client.execute_command(*command))
            return is_sealed(begin)
        return False

    def ack(self, key: str, consumer: str) -> bool:
        """Remove the consumer from the label; free the key after the last one."""
        with self._errors("ack"):
            command = ("EVALSHA", self._ack.sha, 1, key, consumer)
            freed = self._direct.ask(key, command, answers.count, lambda: self._ack(keys=[key], args=[consumer]))
        self._refusals.works(_WRITES)
        failpoint("redis.acked")
        return bool(freed)

    def ack_all(self, keys: Sequence[str], consumer: str) -> int:
        """Ack all keys, with one round trip to each server."""
        with self._errors("ack"):
            commands = [(key, ("EVALSHA", self._ack.sha, 1, key, consumer)) for key in keys]
            freed = self._direct.ask_all(
                commands, answers.count, lambda place: self._ack(keys=[keys[place]], args=[consumer])
            )
        self._refusals.works(_WRITES)
        failpoint("redis.acked")
        return sum(map(bool, freed))

    def usage(self) -> CacheUsage:
        """Return the sum over all primaries. `full_count` is since the servers started."""
        keys = used_bytes = limit_bytes = full_count = 0
        problems: list[str] = []
        with self._silence_of_all.call(), self._errors("usage"):
            for node in self._nodes():
                info = _info(node, "memory", "errorstats")
                problems += _unsafe(node, info)
                with understood():
                    keys += answers.count(node.dbsize())
                    used_bytes += answers.count(info["used_memory"])
                    full_count += answers.count(info.get("errorstat_OOM", {"count": 0})["count"])
                limit_bytes += info["maxmemory"]
        self._evicts = "; ".join(problems)
        return CacheUsage(keys, used_bytes, limit_bytes, full_count)

    def troubles(self) -> Troubles:
        """Report that the server refuses writes, evicts, has no limit, does not answer, or returns damaged values."""
        if words := self._refusals.words:
            return {Kind.CACHE_REFUSES: words}
        if (waited_s := max(self._silence.lasts_s(), self._silence_of_all.lasts_s())) >= LASTS_S:
            return {
                Kind.CACHE_SILENT: f"{self._where} has not answered for {waited_s:.0f} s; see that Redis runs and that "
                f"the network lets it through; what it loses is made again (last: {self._said})"
            }
        evicts = {Kind.CACHE_EVICTS: f"Redis at {self._evicts}"} if self._evicts else {}
        return {**evicts, **self._damage.troubles()}

    def purge(self, prefix: str) -> int:
        """Walk the keys of every primary; keys that are stored concurrently may or may not be found."""
        pattern = "".join("\\" + c if c in "*?[]\\^-" else c for c in prefix) + "*"
        dropped = 0
        with self._errors("purge"):
            nodes = self._nodes()
        for node in nodes:
            cursor = -1
            while cursor:
                with self._errors("purge"), understood():
                    found = node.scan(max(0, cursor), match=pattern, count=_SCAN_COUNT)
                    cursor, keys = answers.page(found, prefix.encode())
                    dropped += _unlink(node, keys)
        return dropped

    def close(self) -> None:
        """Release connections."""
        self._client.close()

    def _unlink(self, key: str) -> None:
        with understood():
            answers.count(self._client.unlink(key))

    def _nodes(self) -> list[redis.Redis]:
        """Return a client for each server that holds keys. A cluster is asked for them each time, since they change."""
        if isinstance(self._client, RedisCluster):
            with understood():
                self._client.nodes_manager.initialize(disconnect_startup_nodes_pools=False)
            primaries = self._client.get_primaries()  # type: ignore[no-untyped-call]
            return [self._client.get_redis_connection(node) for node in primaries]
        return [self._client]

    @contextmanager
    def _errors(self, call: str, of_value: bool = False) -> Iterator[None]:
        """Convert redis-py's errors into ESSP's. `of_value`: the call reads a value, and a value of another type is
        `Unsound`."""
        with self._silence.call(), self._mapped(call, of_value):
            yield
        self._refusals.works(call)

    @contextmanager
    def _mapped(self, call: str, of_value: bool) -> Iterator[None]:
        try:
            yield
        except OutOfMemoryError as error:
            raise CacheFull(f"{self._where} has no room") from error
        except (RedisError, RedisClusterException) as error:
            if of_value and is_of_another_type(error):
                raise Foreign("another program keeps something else under this key") from error
            self._said = advised(str(error))
            if isinstance(error, WrongAnswer):
                self._direct.drop()
            refusal = unknown(str(error)) if isinstance(error, WrongAnswer) else refusal_of(error)
            if refusal is None:
                raise FlowUnavailable(f"{self._where}: {self._said}") from error
            words = f"{self._where}{refusal.words}"
            refused = _WRITES if refusal.writes else call
            lasted_s = self._refusals.refused(refused, words, LASTS_S if refusal.passes else 0.0)
            if refusal.denied:
                raise _Denied(words, _DENIED_RETRY_S) from error
            if not refusal.known and lasted_s >= _UNKNOWN_S:
                raise PermanentError(words) from error
            raise FlowUnavailable(words) from error


class _Denied(FlowUnavailable):
    """A password or a permission is missing."""


def _single(url: str, login: Mapping[str, Any]) -> redis.Redis:
    pool = ConnectionPool.from_url(
        url, connection_class=_connection_class(url), health_check_interval=30, retry=_retry(), **_OPTIONS, **login
    )
    return redis.Redis.from_pool(pool)


def _cluster(url: str, login: Mapping[str, Any]) -> RedisCluster:
    # `RedisCluster` accepts a connection class only with a URL that does not imply one.
    address = url.partition("://")[2]
    return RedisCluster.from_url(
        f"redis://{address}", connection_class=_connection_class(url), retry=_retry(), **_OPTIONS, **login
    )


def _connection_class(url: str) -> type[Connection]:
    return TlsConnection if url.startswith("rediss") else PlainConnection


def _retry() -> Retry:
    return Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.5), retries=3)


def _checked_limit(node: redis.Redis, clustered: bool) -> int:
    """Return the server's memory limit. Raises `ConfigError`, with the command that fixes it, if the server could lose
    frames."""
    info = _info(node, "memory", "cluster")
    problems = _unsafe(node, info)
    if info.get("cluster_enabled") and not clustered:
        problems.append(f"{_address(node)}: it is a node of a cluster: use redis+cluster://")
    if problems:
        raise ConfigError("Redis at " + "; ".join(problems), code="conflict")
    return int(info["maxmemory"])


def _info(node: redis.Redis, *sections: str) -> dict[str, Any]:
    """Return INFO of these sections, one of which must be `memory`."""
    with understood():
        found: Any = node.info(*sections)
        info = answers.fields("used_memory", "maxmemory", "maxmemory_policy")(found)
        answers.count(info["maxmemory"])
        return info


def _opened(key: str, answer: Any) -> memoryview | None:
    """Return the value of a key from GET's answer; None if it is missing. Raises `Unsound`."""
    stored = answers.maybe(answer)
    return None if stored is None else opened(key, stored)


def _unsafe(node: redis.Redis, info: Mapping[str, Any]) -> list[str]:
    """Return how the server, by its INFO memory, could lose frames, each with the command that fixes it."""
    options = node.get_connection_kwargs()
    cli = f"redis-cli -h {options['host']} -p {options['port']}"
    problems = []
    if not info["maxmemory"]:
        problems.append(f"maxmemory is 0, so it grows until the kernel kills it: {cli} CONFIG SET maxmemory 4gb")
    if info["maxmemory_policy"] != "noeviction":
        problems.append(
            f"maxmemory-policy is {info['maxmemory_policy']}, so it drops unread frames: "
            f"{cli} CONFIG SET maxmemory-policy noeviction"
        )
    return [f"{_address(node)}: {problem}" for problem in problems]


def _address(node: redis.Redis) -> str:
    options = node.get_connection_kwargs()
    return f"{options['host']}:{options['port']}"


def _unlink(node: redis.Redis, keys: Sequence[bytes]) -> int:
    """Free these keys, with one command each since they are in different slots. Returns how many there were."""
    pipeline = node.pipeline(transaction=False)
    for key in keys:
        pipeline.unlink(key)
    return sum(map(answers.count, pipeline.execute()))

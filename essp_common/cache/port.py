"""The frame cache: where decoders and extractors put bytes, and consumers take them from.

Each value is stored with the set of consumers that will ack it; the last ack frees it. A set and not a
counter, so that a repeated ack is harmless. The time to live is a leak guard only. A cache never evicts:
when it is full, `put` raises `CacheFull` and the producer waits.

Each value says whose it is and proves it (`seal.py`): `get` gives the bytes that were stored under the key, or none.

Adapters: `memory.py` (`memory://?bytes=256MiB`), `shm.py` (`shm://NAME?bytes=4GiB`), `redis.py` (`redis://host:port/db`,
`redis+cluster://host:port`). All pass `tests/contract/cache_suite.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from essp_common.runtime.troubles import Troubles

Buffer = bytes | bytearray | memoryview
Part = tuple[int, int]
"""Bytes [begin, end) of a value; what lies beyond its end is left out."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A value with its checksums, made where its bytes were made: what happens to them from there on is noticed."""

    value: Buffer
    sums: bytes
    """The checksum of each piece, 4 bytes, little-endian."""
    head_bytes: int = 0
    piece_bytes: int = 0
    """Size of the first piece, and of each further one; 0: the value is one piece."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What a cache holds now."""

    keys: int
    used_bytes: int
    limit_bytes: int
    full_count: int
    """How often a `put` was refused for lack of room."""


def clip_key(job: str, purpose: int, epoch: int, index: int, attempt: int) -> str:
    """The key of a clip's frames; a function of the clip's identity, so that doing it twice is harmless.

    The braces are a Redis Cluster hash tag: everything of one clip lies on one node, and clips spread.
    """
    return f"essp:{job}:{{{purpose}.{epoch}.{index}.{attempt}}}"


def of_tenant(tenant: str, key: str) -> str:
    """A key as the cache has it. No tenant's keys begin as another's do, or as those without a tenant."""
    return f"{tenant}:{key}" if tenant else key


def stream_key(clip: str, stream: str) -> str:
    """The key of one stream made of a clip."""
    return f"{clip}:{stream}"


def job_prefix(job: str) -> str:
    """What every key of a job begins with."""
    return f"essp:{job}:"


class FrameCache(Protocol):
    """Stores bytes until each of their consumers has acked. Thread-safe."""

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        """Store `value` for these consumers. Storing a key again replaces it; without consumers nothing is kept.

        The checksum of a bare buffer is made now; `Summed` brings those that were made with its bytes.
        The caller does not change `value` afterwards: a cache in memory keeps it without a copy.
        Raises `ConfigError` for a value that could never fit.
        Raises `CacheFull` when there is no room, `Unavailable` when the cache cannot be reached or refuses to serve.
        """

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        """The bytes of `key`, not to be written to. Raises `CacheMiss`, also for bytes that are not those that were
        stored: they are counted, and removed.

        `parts`: only these, one after another, which saves carrying the others. Where they are not pieces of a `Summed`
        value, all of it is read to check it.
        """

    def holds(self, key: str) -> bool:
        """Whether there is a value of `key`. Its bytes are neither read nor checked."""

    def ack(self, key: str, consumer: str) -> bool:
        """This consumer is done with `key`. True when that freed it; False also for a key that is gone."""

    def ack_all(self, keys: Sequence[str], consumer: str) -> int:
        """`ack` of each of these, without waiting for one before the next; how many that freed.

        After an error some may be acked: do it again.
        """

    def usage(self) -> CacheUsage:
        """What is held now."""

    def purge(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`; how many there were."""

    def troubles(self) -> Troubles:
        """What keeps this cache from working, or damages what it holds, as far as calls have shown."""

    def close(self) -> None:
        """Release connections; the bytes stay, as far as the cache outlives the process."""

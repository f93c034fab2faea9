"""The frame cache: decoders and extractors put bytes into it, and consumers take them.

Each value is stored with the set of consumers that will ack it; the last ack frees it. A set instead of a counter makes
a repeated ack harmless. The time to live only guards against leaks. A cache never evicts: when it is full, `put` raises
`CacheFull` and the producer waits.

Each value contains a proof that it belongs to its key (`seal.py`): `get` returns the bytes that were stored under the
key, or raises.

Adapters: `memory.py` (`memory://?bytes=256MiB`), `shm.py` (`shm://NAME?bytes=4GiB`), `redis.py`
(`redis://host:port/db`, `redis+cluster://host:port`). All pass `tests/contract/cache_suite.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from essp_common.runtime.troubles import Troubles

Buffer = bytes | bytearray | memoryview
Part = tuple[int, int]
"""Bytes [begin, end) of a value; bytes beyond the value's end are left out."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A value with checksums that were computed where its bytes were made: any later corruption is detected."""

    value: Buffer
    sums: bytes
    """The checksum of each piece, 4 bytes, little-endian."""
    head_bytes: int = 0
    piece_bytes: int = 0
    """Size of the first piece, and of each further one; 0: the value is one piece."""


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The current usage of a cache."""

    keys: int
    used_bytes: int
    limit_bytes: int
    full_count: int
    """How often a `put` was refused for lack of room."""


def clip_key(job: str, purpose: int, epoch: int, index: int, attempt: int) -> str:
    """Return the key of a clip's frames; a function of the clip's identity, so that storing it twice is harmless.

    The braces are a Redis Cluster hash tag: everything about one clip is on one node, and clips spread over the nodes.
    """
    return f"essp:{job}:{{{purpose}.{epoch}.{index}.{attempt}}}"


def of_tenant(tenant: str, key: str) -> str:
    """Return a key as the cache stores it. No tenant's keys begin like another's, or like those without a tenant."""
    return f"{tenant}:{key}" if tenant else key


def stream_key(clip: str, stream: str) -> str:
    """Return the key of one stream made from a clip."""
    return f"{clip}:{stream}"


def job_prefix(job: str) -> str:
    """Return the prefix of all keys of a job."""
    return f"essp:{job}:"


class FrameCache(Protocol):
    """Stores bytes until each of their consumers has acked. Thread-safe."""

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        """Store `value` for these consumers. Storing a key again replaces it; without consumers nothing is kept.

        For a bare buffer, the checksum is computed now; `Summed` brings checksums that were computed with its bytes.
        The caller must not change `value` afterwards: a cache in memory keeps it without a copy.

        Raises `ConfigError` for a value that could never fit, `CacheFull` if there is no room, and `Unavailable` if the
        cache cannot be reached or refuses to serve.
        """

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        """Return the bytes of `key`, which must not be written to. Raises `CacheMiss`, also for bytes that differ from
        those stored: they are counted, and removed.

        `parts`: return only these, concatenated, which saves transferring the others. If they are not pieces of a
        `Summed` value, all of it is read to check it.
        """

    def holds(self, key: str) -> bool:
        """Whether there is a value of `key`. Its bytes are neither read nor checked."""

    def ack(self, key: str, consumer: str) -> bool:
        """Note that this consumer is done with `key`. Returns True if that freed it; False also for a key that is
        gone."""

    def ack_all(self, keys: Sequence[str], consumer: str) -> int:
        """Ack each of these keys, without waiting for one before the next. Returns how many that freed.

        After an error, some may be acked: repeat the call.
        """

    def usage(self) -> CacheUsage:
        """Return the current usage."""

    def purge(self, prefix: str) -> int:
        """Drop every key that begins with `prefix`. Returns how many there were."""

    def troubles(self) -> Troubles:
        """Report what keeps this cache from working or damages its values, as far as calls have shown."""

    def close(self) -> None:
        """Release connections; the bytes stay, as far as the cache outlives the process."""

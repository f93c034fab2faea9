"""The frame cache inside one process: `memory://?bytes=256MiB` (1 GiB by default).

Nothing is copied: `put` keeps the caller's buffer, which must not be changed afterwards, and `get` returns the same
buffer after checking that its bytes are unchanged. A returned buffer stays valid after its key is freed.

Expired values are dropped when they are read, when room is needed, and by `usage`. A value that does not fit raises
`CacheFull`, as in Redis; one that could never fit, `ConfigError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from essp_common.cache.damage import Damage
from essp_common.cache.port import Buffer, CacheUsage, Part, Summed
from essp_common.cache.seal import Seal, Unsound
from essp_common.errors import CacheFull, CacheMiss, ConfigError
from essp_common.quantities import parse_bytes
from essp_common.runtime import forks
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.troubles import Troubles

DEFAULT_BYTES = 2**30


@dataclass(slots=True)
class _Entry:
    value: Buffer
    seal: Seal
    size_bytes: int
    waiting: set[str]
    expires_s: float


class MemoryCache:
    """A `FrameCache` in this process's memory."""

    def __init__(self, limit_bytes: int = DEFAULT_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._used_bytes = 0
        self._full_count = 0
        self._lock = threading.Lock()
        self._damage = Damage("the frame cache in memory", clock)
        forks.follow(self)

    def forked(self) -> None:
        """Replace the lock, which another thread may have held."""
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str) -> MemoryCache:
        """`memory://?bytes=256MiB`. Raises `ConfigError`."""
        options = parse_qs(urlsplit(url).query, keep_blank_values=True)
        size = options.pop("bytes", [str(DEFAULT_BYTES)])[-1]
        try:
            limit_bytes = parse_bytes(size)
        except ValueError:  # its message may contain the end of a password
            raise ConfigError(
                f"cache URL {shown_address(url)!r}: bytes must be a size, as in bytes=256MiB", code="type"
            ) from None
        if options or not isinstance(limit_bytes, int) or limit_bytes <= 0:
            raise ConfigError(
                f"cache URL {shown_address(url)!r}: the only option is a positive size, as in memory://?bytes=256MiB"
            )
        return cls(limit_bytes)

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        """Keep `value`, by reference."""
        seal, value = Seal.of(key, value), value.value if isinstance(value, Summed) else value
        size_bytes = memoryview(value).nbytes
        if size_bytes > self._limit_bytes:
            raise ConfigError(
                f"{key}: a value of {size_bytes} bytes can never fit into a cache of {self._limit_bytes}; "
                "give the cache more (memory://?bytes=...) or make clips smaller",
                code="range",
            )
        with self._lock:
            if not consumers:
                self._drop(key)
                return
            if not self._has_room(key, size_bytes):
                self._drop_expired()
            if not self._has_room(key, size_bytes):
                self._full_count += 1
                raise CacheFull(
                    f"the cache holds {self._used_bytes} of {self._limit_bytes} bytes: no room for {size_bytes}"
                )
            self._drop(key)
            self._entries[key] = _Entry(value, seal, size_bytes, set(consumers), self._clock() + ttl_s)
            self._used_bytes += size_bytes

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        """Return the very buffer that was put, or a copy of parts of it."""
        with self._lock:
            entry = self._alive(key)
        if entry is None:
            raise CacheMiss(f"{key} is not in the cache")
        try:
            return _checked(key, entry, parts)
        except Unsound as error:
            with self._lock:
                if self._entries.get(key) is entry:
                    self._drop(key)
            raise self._damage.found(key, error) from error

    def holds(self, key: str) -> bool:
        """Whether the key is present."""
        with self._lock:
            return self._alive(key) is not None

    def ack(self, key: str, consumer: str) -> bool:
        """Remove the consumer from the value's set; drop the value after the last one."""
        with self._lock:
            entry = self._alive(key)
            if entry is None:
                return False
            entry.waiting.discard(consumer)
            return not entry.waiting and self._drop(key)

    def ack_all(self, keys: Sequence[str], consumer: str) -> int:
        """Ack one key after another."""
        return sum(self.ack(key, consumer) for key in keys)

    def usage(self) -> CacheUsage:
        """Return what is stored, without expired values."""
        with self._lock:
            self._drop_expired()
            return CacheUsage(len(self._entries), self._used_bytes, self._limit_bytes, self._full_count)

    def purge(self, prefix: str) -> int:
        """Drop the keys of a job."""
        with self._lock:
            self._drop_expired()
            return sum(self._drop(key) for key in [k for k in self._entries if k.startswith(prefix)])

    def troubles(self) -> Troubles:
        """Report damaged values."""
        return self._damage.troubles()

    def close(self) -> None:
        """Drop everything: the cache lives no longer than its process."""
        with self._lock:
            self._entries.clear()
            self._used_bytes = 0

    def _has_room(self, key: str, size_bytes: int) -> bool:
        """Whether `size_bytes` fit once `key` has been replaced."""
        replaced = self._entries.get(key)
        return self._used_bytes - (replaced.size_bytes if replaced else 0) + size_bytes <= self._limit_bytes

    def _alive(self, key: str) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is not None and entry.expires_s <= self._clock():
            self._drop(key)
            return None
        return entry

    def _drop(self, key: str) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._used_bytes -= entry.size_bytes
        return True

    def _drop_expired(self) -> None:
        now = self._clock()
        for key in [k for k, entry in self._entries.items() if entry.expires_s <= now]:
            self._drop(key)


def _checked(key: str, entry: _Entry, parts: Sequence[Part]) -> Buffer:
    """Return the value, or parts of it. Raises `Unsound`."""
    view = memoryview(entry.value).cast("B")
    pieces = [view[begin:end] for begin, end in parts]
    places = entry.seal.places(parts) if parts else None
    if places is None:
        entry.seal.check(key, view)
    else:
        entry.seal.check_pieces(key, places, pieces)
    return b"".join(pieces) if parts else entry.value

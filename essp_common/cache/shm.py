"""The frame cache in the memory of one machine: `shm://NAME?bytes=4GiB`, for processes that share its `/dev/shm`.

Each value is a file: expiry time, label (`label.py`), bytes. It appears and disappears by a rename, so it is always
complete, whichever process is killed (`shm_folder.py`). Bytes are copied once, into the file; `get` maps large values.
A mapped value stays valid when its key is freed, and uses memory for as long as something refers to it, as a copy
would: its file stays locked, so that it is not overwritten (`shm_maps.py`). A reader checks the bytes against the seal
in the label.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

import numpy as np

from essp_common.cache.damage import Damage
from essp_common.cache.label import DIGITS, label, label_bytes, seal_in
from essp_common.cache.port import Buffer, CacheUsage, Part, Summed
from essp_common.cache.seal import Seal, Unsound
from essp_common.cache.shm_folder import Folder, State, held
from essp_common.cache.shm_maps import Maps
from essp_common.errors import CacheMiss, ConfigError
from essp_common.quantities import parse_bytes
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.troubles import Troubles

PARENT = Path("/dev/shm")
"""All processes of a machine share it; the folder in it belongs to one user."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HEAD = struct.Struct("<8sdq40x")
"""Magic; expiry time (`time.monotonic`: one clock for all processes of a machine); number of bytes that follow."""
_MAGIC = b"ESSPVAL1"
_MAPPED_BYTES = 1 << 16
"""Smaller values are copied: mapping would take longer."""
_LONGEST_FILE_NAME = 255


class _Stored(NamedTuple):
    """What precedes a value."""

    expires_s: float
    label: bytes
    end: int
    """Where the value ends in the file."""

    @property
    def begin(self) -> int:
        return _HEAD.size + len(self.label)


class SharedMemoryCache:
    """A `FrameCache` in files of `/dev/shm`."""

    def __init__(
        self,
        name: str,
        limit_bytes: int | None = None,
        parent: Path = PARENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_bytes`: None takes the limit of the process that opened it first, or 1 GiB. Raises `ConfigError`."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"cache {shown_address(f'shm://{name}')}: a name has up to 64 letters, digits, '-', '_' and '.'; shm://clips"
            )
        if not parent.is_dir():
            raise ConfigError(
                f"cache shm://{name}: there is no {parent} on this machine; use redis://", code="unsupported"
            )
        self._url = f"shm://{name}"
        self._clock = clock
        self._folder = Folder(parent, name, limit_bytes)
        self._maps = Maps()
        self._damage = Damage(self._url, clock)

    @classmethod
    def from_url(cls, url: str) -> SharedMemoryCache:
        """`shm://clips?bytes=4GiB`. Raises `ConfigError`."""
        parts = urlsplit(url)
        options = parse_qs(parts.query, keep_blank_values=True)
        size = options.pop("bytes", [""])[-1]
        try:
            asked = parse_bytes(size) if "bytes=" in parts.query else None
        except ValueError:  # its message may contain the end of a password
            raise ConfigError(
                f"cache URL {shown_address(url)!r}: bytes must be a size, as in bytes=256MiB", code="type"
            ) from None
        limit_bytes = asked if isinstance(asked, int) else None
        if options or limit_bytes != asked or (limit_bytes is not None and limit_bytes <= 0) or parts.path.strip("/"):
            raise ConfigError(
                f"cache URL {shown_address(url)!r}: write a name and a positive size, as in shm://clips?bytes=4GiB"
            )
        return cls(parts.netloc, limit_bytes)

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        """Write the value, and rename it to its key when it is complete."""
        path = self._path(key)
        if not consumers:
            with self._folder.locked() as state:
                self._folder.free(state, path)
            return
        view = memoryview(value.value if isinstance(value, Summed) else value).cast("B")
        expires_s = self._clock() + ttl_s
        named = label(Seal.of(key, value), tuple(consumers))
        size = _HEAD.size + len(named) + view.nbytes
        head = _HEAD.pack(_MAGIC, expires_s, size - _HEAD.size) + named
        if held(size) > self._folder.limit_bytes:
            raise ConfigError(
                f"{key}: a value of {view.nbytes} bytes can never fit, {self._url} takes {self._folder.limit_bytes}; "
                "give the cache more (shm://NAME?bytes=...), choose codec jpeg, or make clips smaller",
                code="range",
            )
        file, temporary = self._folder.reserve(path, size, self._clear)
        try:
            with self._folder.problems():
                self._write(file, temporary, head, view)
            self._folder.rename(file, temporary, path, expires_s)
        finally:
            os.close(file)

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        """Return the value in place, or a copy of parts of it."""
        try:
            with self._folder.problems():
                return self._checked(key, parts)
        except Unsound as error:
            with self._folder.locked() as state:
                self._folder.free(state, self._path(key))
            raise self._damage.found(key, error) from error

    def _checked(self, key: str, parts: Sequence[Part]) -> Buffer:
        """Read and check a value or parts. Raises `Unsound`."""
        file = _read_locked(self._path(key))
        if file is None:
            raise CacheMiss(f"{key} is not in the cache")
        try:
            stored = self._alive(file)
            if stored is None:
                raise CacheMiss(f"{key} is not in the cache")
            if not stored.begin <= stored.end <= os.fstat(file).st_size:
                raise Unsound("what precedes its bytes is damaged")
            seal = seal_in(stored.label)
            if parts and (places := seal.places(parts)) is not None:
                found = _parts(file, stored, parts)
                sizes = [end - begin for begin, end in parts]
                seal.check_pieces(key, places, _cut(found, sizes))
                return found
            if stored.end < _MAPPED_BYTES:
                value = memoryview(os.pread(file, stored.end - stored.begin, stored.begin))
            else:
                mapped, file = file, None
                value = self._maps.view(mapped, stored.begin, stored.end)
            seal.check(key, value)
            return b"".join(value[begin:end] for begin, end in parts) if parts else value
        finally:
            if file is not None:
                os.close(file)

    def holds(self, key: str) -> bool:
        """Whether there is a file that has not expired."""
        with self._folder.problems():
            file = _read_locked(self._path(key))
            if file is None:
                return False
            try:
                return self._alive(file) is not None
            finally:
                os.close(file)

    def ack(self, key: str, consumer: str) -> bool:
        """Remove the consumer from the label; free the value after the last one."""
        return self.ack_all([key], consumer) == 1

    def ack_all(self, keys: Sequence[str], consumer: str) -> int:
        """Ack one after another, under one lock."""
        paths = [self._path(key) for key in keys]
        with self._folder.locked() as state:
            return sum(self._acked(state, path, consumer) for path in paths)

    def usage(self) -> CacheUsage:
        """Return what is stored, including values being written, without expired ones."""
        with self._folder.locked() as state:
            self._clear(state)
            return CacheUsage(state.keys, state.used_bytes, state.limit_bytes, state.full_count)

    def purge(self, prefix: str) -> int:
        """Drop the values of a job; values that are being stored concurrently stay."""
        with self._folder.locked() as state:
            self._clear(state)
            names = [name for name in os.listdir(self._folder.values) if unquote(name).startswith(prefix)]
            return sum(self._folder.free(state, self._folder.values + name) for name in names)

    def troubles(self) -> Troubles:
        """Report damaged values: this cache never evicts, and no server can be silent."""
        return self._damage.troubles()

    def close(self) -> None:
        """Leave. The bytes stay until the last process has left."""
        self._maps.close()
        self._folder.close()

    def _path(self, key: str) -> str:
        name = quote(key, safe=":{}")
        if len(name) > _LONGEST_FILE_NAME:
            raise ConfigError(
                f"{key}: too long a key for {self._url}; give the job and its streams shorter names", code="range"
            )
        return self._folder.values + name

    def _write(self, file: int, temporary: str, head: bytes, view: memoryview) -> None:
        """Write all of a value; tmpfs takes it in one call unless memory runs out."""
        try:
            done = os.writev(file, [head, view])
            while done < len(head) + view.nbytes:
                done += os.write(file, view[done - len(head) :] if done >= len(head) else head[done:])
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self._folder.give_up(temporary)
            raise

    def _alive(self, file: int) -> _Stored | None:
        """Return what precedes a value; None if it has expired or is not a value."""
        begin = os.pread(file, _HEAD.size + 64, 0)
        size = label_bytes(begin[_HEAD.size :]) if len(begin) >= _HEAD.size + DIGITS else 0
        if not size or not begin.startswith(_MAGIC):
            return None
        _, expires_s, length = _HEAD.unpack_from(begin)
        if expires_s <= self._clock():
            return None
        names = begin[_HEAD.size :] if size == len(begin) - _HEAD.size else os.pread(file, size, _HEAD.size)
        return _Stored(expires_s, names, _HEAD.size + length)

    def _acked(self, state: State, path: str, consumer: str) -> bool:
        """Ack a value for a consumer. Returns whether that freed it."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            stored = self._alive(file)
            place = stored.label.find(b"\n-%b\n" % consumer.encode()) if stored else -1
            if stored is None or place < 0:
                return False
            if stored.label.count(b"\n-") == 1:
                return self._folder.free(state, path)
            os.pwrite(file, b"+", _HEAD.size + place + 1)
            return False
        finally:
            os.close(file)

    def _clear(self, state: State) -> None:
        """Free values that will never be acked."""
        self._folder.remove_dead_writers(state)
        if state.expires_s > self._clock():
            return
        state.expires_s = float("inf")
        for name in os.listdir(self._folder.values):
            path = self._folder.values + name
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                stored = self._alive(file)
            finally:
                os.close(file)
            if stored is None:
                self._folder.free(state, path)
            else:
                state.expires_s = min(state.expires_s, stored.expires_s)


def _read_locked(path: str) -> int | None:
    """Open the file of a value; None if it does not exist. It stays locked while it is open, here or as a map."""
    while True:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(path), os.fstat(file)):
                return file
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(file)  # freed, and possibly reused for another value: look again


def _parts(file: int, stored: _Stored, parts: Sequence[Part]) -> memoryview:
    """Read parts of a value, concatenated."""
    places = [(stored.begin + first, min(stored.begin + last, stored.end)) for first, last in parts]
    found = np.empty(sum(max(0, last - first) for first, last in places), np.uint8)
    left = memoryview(found.data)
    for first, last in places:
        while first < last:
            count = os.preadv(file, [left[: last - first]], first)
            left, first = left[count:], first + count
    return memoryview(found.data).toreadonly()


def _cut(joined: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Split concatenated parts."""
    begin = 0
    for size in sizes:
        yield joined[begin : begin + size]
        begin += size

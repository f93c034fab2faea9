"""A store that is as slow as another device: a disk, a network, a parallel file system.

    133MB/s,8ms               this many bytes per second for all readers together, and this latency per request
    133MB/s,8ms,parallel=2    and no more than two requests served at a time
    hdd                       one of `PRESETS`

A request waits for its turn, takes the latency, and then moves its bytes over a link that all requests share. It keeps
its turn for as long as it would take alone. Large requests move in pieces, so that small ones pass between them, and a
thread waits for at most one piece of each other request. The time of the underlying store counts.

`Device` schedules turns and the link, with times passed in; `ThrottledStore` sleeps until then. A sleeping thread
computes nothing, so a simulated device takes no CPU. Sleeps end about 0.1 ms late, which delays a request but not those
behind it.

Writes are slowed down like reads. There are no local paths, since they would bypass the throttle.
"""

from __future__ import annotations

import heapq
import io
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.objects.ranged import RangedFile
from essp_common.objects.wrapper import StoreWrapper
from essp_common.quantities import parse_bytes
from essp_common.runtime.forks import Mutex

PIECE_BYTES = 2**18
"""Bytes that a request moves before others have their turn on the link."""
_LONGEST_S = 60.0
_MOST_PARALLEL = 4096
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Throttle:
    """Bandwidth, latency and parallelism of a device."""

    bytes_per_s: float
    latency_s: float = 0.0
    """Per request."""
    parallel: int = _MOST_PARALLEL
    """Number of requests served at the same time."""

    def __str__(self) -> str:
        parts = [f"{_plain(self.bytes_per_s / 1e6)}MB/s", f"{_plain(self.latency_s * 1e3)}ms"]
        return ",".join(parts + [f"parallel={self.parallel}"] * (self.parallel < _MOST_PARALLEL))


PRESETS = {
    "hdd": Throttle(163e6, 8e-3, 2),
    "ssd": Throttle(280e6, 0.1e-3, 32),
    "optane": Throttle(1603e6, 0.01e-3, 64),
    "lustre": Throttle(1968e6, 4e-3),
    "network": Throttle(125e6, 30e-3),
}
"""Bandwidths of the first four as measured with IOR by Chien and others (2018), Table I. Latency and parallelism are
typical for such devices: a 7,200 rpm disk that orders its queue, a SATA drive, an Optane card, a parallel file system,
and an object store at the other end of 1 Gbit/s."""


def parse_throttle(text: str) -> Throttle:
    """Parse a throttle. Raises `ConfigError`."""
    if text.strip().lower() in PRESETS:
        return PRESETS[text.strip().lower()]
    bandwidth, *rest = (part.strip() for part in text.split(","))
    found = Throttle(_bandwidth(bandwidth, text))
    for part in rest:
        if duration := _DURATION.fullmatch(part.replace(" ", "")):
            latency_s = float(duration[1]) * _SECONDS[duration[2]]
            if latency_s > _LONGEST_S:
                raise _refused(text, f"a latency of {part} is more than {_LONGEST_S:g}s")
            found = Throttle(found.bytes_per_s, latency_s, found.parallel)
        elif (count := part.removeprefix("parallel=")).isdecimal() and count != part:
            if not 1 <= int(count) <= _MOST_PARALLEL:
                raise _refused(text, f"parallel is 1 to {_MOST_PARALLEL}")
            found = Throttle(found.bytes_per_s, found.latency_s, int(count))
        else:
            raise _refused(text, f"{part!r} is neither a latency such as 8ms nor parallel=N")
    return found


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _bandwidth(text: str, whole: str) -> float:
    if not text.lower().endswith("/s"):
        raise _refused(whole, f"{text!r} is not a bandwidth")
    try:
        found = parse_bytes(text[:-2])
    except ValueError as error:
        raise _refused(whole, f"{text!r} is not a bandwidth") from error
    if not isinstance(found, int) or found < 1:
        raise _refused(whole, "a bandwidth is at least 1B/s")
    return float(found)


def _refused(text: str, why: str) -> ConfigError:
    known = ", ".join(f"{name} ({preset})" for name, preset in PRESETS.items())
    return ConfigError(f"throttle {text!r}: {why}; write for example 133MB/s,8ms,parallel=2, or one of {known}")


class Device:
    """Schedules turns and the link. Times are seconds of one clock. Thread-safe."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self._lock = Mutex()
        self._turns: list[float] = []
        """When each of the most recent requests passes its turn on; a heap."""
        self._link_free_s = 0.0

    def begin(self, now_s: float, count: int) -> float:
        """Return when the first of `count` bytes of a request that arrives now can move."""
        throttle = self.throttle
        with self._lock.held:
            turn_s = now_s
            if len(self._turns) >= throttle.parallel:
                turn_s = max(now_s, heapq.heappop(self._turns))
            ready_s = turn_s + throttle.latency_s
            heapq.heappush(self._turns, ready_s + count / throttle.bytes_per_s)
            return ready_s

    def move(self, ready_s: float, count: int) -> float:
        """Return when `count` bytes that can move from `ready_s` have moved; they come after the bytes of earlier
        calls."""
        with self._lock.held:
            self._link_free_s = max(self._link_free_s, ready_s) + count / self.throttle.bytes_per_s
            return self._link_free_s


class ThrottledStore(StoreWrapper):
    """An `ObjectStore` that delegates to another one, with a delay."""

    def __init__(
        self,
        store: ObjectStore,
        device: Device,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`device`: shared by all stores that should be on one device."""
        super().__init__(store)
        self._device = device
        self._clock = clock
        self._sleep = sleep

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Takes one request."""
        begin_s = self._clock()
        data = self._store.get(key, start, length)
        self._pass(begin_s, len(data))
        return data

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Takes one request."""
        begin_s = self._clock()
        info = self._store.put(key, data, if_absent=if_absent)
        self._pass(begin_s, len(data))
        return info

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Takes one request."""
        begin_s = self._clock()
        info = self._store.put_file(key, path)
        self._pass(begin_s, info.size_bytes)
        return info

    def head(self, key: str) -> ObjectInfo:
        """Takes one request."""
        begin_s = self._clock()
        info = self._store.head(key)
        self._pass(begin_s)
        return info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Takes one request, however many objects there are."""
        self._pass(self._clock())
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """Takes one request."""
        begin_s = self._clock()
        self._store.delete(key)
        self._pass(begin_s)

    def open(self, key: str) -> BinaryIO:
        """Return a file that is read in ranges, each one request, as in any object store."""
        info = self.head(key)
        return io.BufferedReader(RangedFile(info.size_bytes, lambda at, size: self.get(key, at, size)))

    def below(self, folder: str) -> ThrottledStore:
        """Return the store for a folder, on the same device."""
        return ThrottledStore(self._store.below(folder), self._device, self._clock, self._sleep)

    def _pass(self, begin_s: float, count: int = 0) -> None:
        """Sleep until a request that began at `begin_s` has moved its bytes."""
        at_s = self._device.begin(begin_s, count)
        self._until(at_s)
        for done in range(0, count, PIECE_BYTES):
            at_s = self._device.move(at_s, min(PIECE_BYTES, count - done))
            self._until(at_s)

    def _until(self, at_s: float) -> None:
        left_s = at_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

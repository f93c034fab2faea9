"""Checks a cache in the shared memory of this machine: is there room for it, does a value come back?"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

from essp.doctor.finding import Finding, fail, ok, warn
from essp_common.cache.shm import PARENT, SharedMemoryCache
from essp_common.quantities import size

CHECK = "shm"


def examine(url: str) -> Iterator[Finding]:
    """Check the cache at `url`. Raises `EsspError` if a check cannot continue."""
    key, value, began = f"essp-doctor:{{{uuid.uuid4().hex}}}", b"doctor", time.monotonic()
    with closing(SharedMemoryCache.from_url(url)) as cache:
        usage = cache.usage()
        cache.put(key, value, ["doctor"], ttl_s=60)
        same = bytes(cache.get(key)) == value
        freed = cache.ack(key, "doctor")
    taken_ms = 1000 * (time.monotonic() - began)
    room = os.statvfs(PARENT)
    free = room.f_bavail * room.f_frsize
    left = usage.limit_bytes - usage.used_bytes
    if free < left:
        yield warn(
            CHECK,
            f"{PARENT} has {size(free)} free, and the cache may still take {size(left)}",
            "make it larger (docker run --shm-size, mount -o remount,size=), or the cache smaller (?bytes=...); "
            "see what else is there",
        )
    else:
        yield ok(CHECK, f"the cache may take {size(left)} more, and {PARENT} has {size(free)} free")
    if same and freed:
        yield ok(CHECK, f"a value came back and was freed in {taken_ms:.0f} ms; every process must be on this machine")
    else:
        yield fail(
            CHECK, "a value came back changed, or was freed by another process", "name a cache that nothing else uses"
        )

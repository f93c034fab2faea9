"""The process that touches untrusted video: `python -m services.decoder.child SOCKET MEMORY`, started by `sandbox.py`.

It imports PyAV and NumPy, and the store's client where videos lie in one; it never sees the bus or the cache. Over
the socket it takes a greeting (JSON: `Greeting`) and says that it is ready. Then for each work unit it takes the size
of the shared memory and a `DecodeSeed`, and answers with a JSON object (see `Child.answer`) once the clips lie in the
shared memory, as values of the cache. It ends when the socket does.
"""

from __future__ import annotations

import json
import math
import mmap
import resource
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.codec import encode, frame_buffer
from essp_common.errors import BadVideo, EsspError, PermanentError, TransientError
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.video.container import Limits
from essp_common.wiring import Stores
from services.decoder.rooms import Room, rooms
from services.decoder.sources import Shelf

MEMORY_SIZE = struct.Struct("<Q")
"""In front of each `DecodeSeed`."""

READY = b"ready"

_OPEN_FILES = 256


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a child is told once."""

    stores: tuple[str, ...]
    open_videos: int
    video_bytes: int
    frame_pixels: int
    address_bytes: int
    unit_s: float
    """CPU time of one unit; twice that ends a child whose parent is no longer there to do it."""

    def to_json(self) -> bytes:
        """As sent."""
        return json.dumps(asdict(self)).encode()


class Child:
    """Decodes work units into shared memory."""

    def __init__(self, greeting: Greeting, memory_fd: int) -> None:
        limits = Limits(size_bytes=greeting.video_bytes, pixels=greeting.frame_pixels)
        self._shelf = Shelf(Stores(greeting.stores), limits, greeting.open_videos)
        self._memory_fd = memory_fd
        self._memory = memoryview(b"")

    def answer(self, request: bytes) -> bytes:
        """`{"clips": [bytes | {"reason", "kind"}, ...]}`, or for the unit as a whole `{"reason", "kind"}` where it
        cannot be decoded, `{"reason", "retry_after_s"}` where trying again may help."""
        (size,) = MEMORY_SIZE.unpack_from(request)
        unit = DecodeSeed.FromString(request[MEMORY_SIZE.size :])
        if size != len(self._memory):
            self._memory = memoryview(mmap.mmap(self._memory_fd, size))
        try:
            clips = self._decode(unit)
        except TransientError as error:
            return _packed({"reason": str(error), "retry_after_s": error.retry_after_s})
        except EsspError as error:
            self._shelf.drop(unit.video)
            return _packed(_told(error))
        except MemoryError:
            self._shelf.drop(unit.video)
            return _packed({"reason": "decoding needs more memory than a child may have", "kind": "limit"})
        return _packed({"clips": clips})

    def _decode(self, unit: DecodeSeed) -> list[int | dict[str, Any]]:
        places = rooms(unit)
        reader = self._shelf.reader(unit.video)
        raw = unit.recipe.codec.name in ("", "raw")
        values: list[memoryview] = []
        frames: list[NDArray[np.uint8]] = []
        for place in places:
            if raw:
                value, array = frame_buffer(place.shape, "u1", self._memory[place.start : place.stop])
                values.append(value)
            else:
                array = np.empty(place.shape, np.uint8)
            frames.append(array)
        outcomes = reader.read(unit.seeds, unit.recipe.resize, frames, strict=unit.recipe.strict)
        if any(outcomes):
            self._shelf.drop(unit.video)
        if raw:
            return [_told(error) if error else len(value) for error, value in zip(outcomes, values, strict=True)]
        return [
            _told(error) if error else self._store(encode(array, unit.recipe.codec), place)
            for error, array, place in zip(outcomes, frames, places, strict=True)
        ]

    def _store(self, value: Any, place: Room) -> int | dict[str, Any]:
        size = len(value)
        if size > place.stop - place.start:
            return _told(BadVideo("the frames do not compress; use another codec for clips", "limit"))
        self._memory[place.start : place.start + size] = value
        return size


def _told(error: EsspError) -> dict[str, Any]:
    return {"reason": str(error), "kind": getattr(error, "kind", PermanentError.kind)}


def _packed(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()


def _confine(greeting: Greeting) -> None:
    """Limits that hold even when the parent is gone. Files cannot be written; pipes and shared memory can."""
    for limit, value in (
        (resource.RLIMIT_AS, greeting.address_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
    ):
        hard = resource.getrlimit(limit)[1]
        capped = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (capped, capped))


def _allow_cpu(unit_s: float) -> None:
    """Move the limit of CPU time ahead of what has been used by now."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = math.ceil(time.process_time() + 2 * unit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))


def main(arguments: Sequence[str]) -> None:
    """Serve the socket until it is closed."""
    socket_fd, memory_fd = map(int, arguments)
    with Connection(socket_fd) as connection, suppress(EOFError, ConnectionResetError, BrokenPipeError):
        told = json.loads(connection.recv_bytes())
        greeting = Greeting(**{**told, "stores": tuple(told["stores"])})
        _confine(greeting)
        child = Child(greeting, memory_fd)
        connection.send_bytes(READY)
        while True:
            request = connection.recv_bytes()
            _allow_cpu(greeting.unit_s)
            connection.send_bytes(child.answer(request))


if __name__ == "__main__":
    main(sys.argv[1:])

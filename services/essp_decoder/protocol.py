"""What parent and child say to each other over their socket.

    parent -> child   its configuration: JSON of `ChildConfig`
    child -> parent   `READY`
    parent -> child   a request: size of the shared memory, the place of each clip in it, a `DecodeSeed`
    child -> parent   an answer, JSON: {"clips": [bytes | {"reason", "kind"}, ...], "frames": {what: count}}, one
                      entry a seed, and what reading took (`selection.Tally`); for the message as a whole
                      {"reason", "kind"} where it can't be decoded and {"reason", "retry_after_s"} where trying again
                      may help

A clip lies at the start of its slot, as a value of the cache. Each message is preceded by its length.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from essp_common.errors import PermanentError
from essp_common.pb.v1.messages_pb2 import DecodeSeed, FrameCodec
from essp_common.video.codec import max_encoded_bytes
from essp_common.video.geometry import output_size
from essp_decoder.memory import Slot

READY = b"ready"

_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<QI")
_SLOT = struct.Struct("<QQ")

Shape = tuple[int, int, int, int]
"""(T, H, W, 3)."""


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """What a child is told once."""

    stores: tuple[str, ...]
    open_videos: int
    video_bytes: int
    frame_pixels: int
    address_bytes: int
    """Address space beyond the shared memory."""
    unit_s: float
    """Longest time for a request; twice that in CPU time ends a child whose parent is no longer there to do it."""

    def packed(self) -> bytes:
        """As sent."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, message: bytes) -> ChildConfig:
        """As received."""
        told = json.loads(message)
        return cls(**{**told, "stores": tuple(told["stores"])})


@dataclass(frozen=True, slots=True)
class Request:
    """One work unit."""

    memory_bytes: int
    slots: Sequence[Slot]
    unit: DecodeSeed

    def packed(self) -> bytes:
        """As sent."""
        slots = b"".join(_SLOT.pack(slot.start, slot.size) for slot in self.slots)
        return _HEAD.pack(self.memory_bytes, len(self.slots)) + slots + self.unit.SerializeToString()

    @classmethod
    def unpacked(cls, message: bytes) -> Request:
        """As received."""
        memory_bytes, count = _HEAD.unpack_from(message)
        end = _HEAD.size + count * _SLOT.size
        slots = [Slot(*slot) for slot in _SLOT.iter_unpack(message[_HEAD.size : end])]
        return cls(memory_bytes, slots, DecodeSeed.FromString(message[end:]))


class Channel:
    """One end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def send(self, message: bytes) -> None:
        """Raises `OSError` when the other end is gone."""
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """The next message. Raises `EOFError` or `OSError` when the other end is gone, `TimeoutError`."""
        self._socket.settimeout(timeout_s)
        received = self._some()
        while len(received) < _LENGTH.size or len(received) < (end := _LENGTH.size + _LENGTH.unpack_from(received)[0]):
            received += self._some()
        return received[_LENGTH.size : end]

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def _some(self) -> bytes:
        part = self._socket.recv(1 << 16)
        if not part:
            raise EOFError("the other end is closed")
        return part


def clip_shapes(unit: DecodeSeed) -> list[Shape]:
    """The shape of each seed's frames. Raises `PermanentError` for seeds that ask for nothing."""
    height, width = output_size(unit.recipe.resize, unit.video.height, unit.video.width)
    shapes = []
    for seed in unit.seeds:
        if not (height and width and seed.frame_count and seed.stride):
            raise PermanentError(f"{unit.video.id}: a seed without frames, or a video without size")
        shapes.append((seed.frame_count, height, width, 3))
    return shapes


def is_raw(codec: FrameCodec) -> bool:
    """The clip is stored as it is decoded."""
    return codec.name in ("", "raw")


def slot_bytes(shape: Shape, codec: FrameCodec) -> int:
    """Room for a clip's value. What compresses badly may come out larger than it was."""
    return _slot_bytes(shape, codec.name)


@lru_cache(maxsize=1024)
def _slot_bytes(shape: Shape, codec: str) -> int:
    return max_encoded_bytes(shape, "u1", codec)

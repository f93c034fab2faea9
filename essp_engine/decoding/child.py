"""The process that handles untrusted video: `python -m essp_engine.decoding.child CONNECTION MEMORY [BLOCKS]`, started
by `sandbox.py`.

It imports PyAV and NumPy, and the object store's client if videos are stored there. It has no access to the bus or the
cache, nor to their passwords: `essp_common/runtime/confinement.py` says what it gets. `protocol.py` describes the
messages on the connection. The process ends when the connection is closed.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.cache.port import Buffer
from essp_common.errors import BadVideo, EsspError, PermanentError, TransientError
from essp_common.objects.port import StoreRefuses
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Video
from essp_common.runtime.child_process import Channel
from essp_common.runtime.confinement import are_local, confine
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.shared_slots import Slot
from essp_common.wiring import Stores
from essp_engine.decoding.block_protocol import BlockClient
from essp_engine.decoding.open_records import OpenRecords
from essp_engine.decoding.open_videos import OpenVideos
from essp_engine.decoding.protocol import (
    READY,
    ChildConfig,
    Request,
    Shapes,
    clip_dtypes,
    clip_shapes,
    is_of_records,
    is_raw,
    motion_of,
)
from essp_engine.video.codec import complete, encode, frame_buffer, raw_bytes
from essp_engine.video.colour import Colour
from essp_engine.video.container import Limits
from essp_engine.video.joined import begins, joined, joined_bytes, write_head
from essp_engine.video.motion import Motion
from essp_engine.video.motion_layout import DTYPE
from essp_engine.video.selection import Tally

_OPEN_FILES = 256
_PR_SET_PDEATHSIG = 1
_REFUSED_RETRY_S = 5.0


class Child:
    """Decodes work units into shared memory."""

    def __init__(self, config: ChildConfig, memory_fd: int, blocks: BlockClient | None) -> None:
        limits = Limits(size_bytes=config.video_bytes, pixels=config.frame_pixels)
        self._stores = stores = Stores(config.stores)
        self._videos = OpenVideos(stores, limits, config.open_videos, config.address_bytes // 4, blocks)
        self._records = OpenRecords(stores, limits, config.open_videos, blocks)
        self._address_bytes = config.address_bytes
        self._memory_fd = memory_fd
        self._memory = memoryview(b"")
        self._tally = Tally()
        """Counts of the current unit."""

    def answer(self, request: Request) -> dict[str, Any]:
        """Decode a unit. Returns the answer that `protocol.py` describes.

        For a video in a store, a single bad answer does not prove damage: the data may have been corrupted on its way.
        So it is read again, bypassing the decoder's cache.
        """
        answer = self._answered(request)
        if _blames(answer) and not all(map(self._is_local, _videos(request.unit))):
            answer = self._answered(request)
        return answer

    def _answered(self, request: Request) -> dict[str, Any]:
        if request.memory_bytes != len(self._memory):
            self._memory = memoryview(b"")  # releases the previous mapping, which would count towards the limit
            _limit(resource.RLIMIT_AS, self._address_bytes + request.memory_bytes)
            self._memory = memoryview(mmap.mmap(self._memory_fd, request.memory_bytes))
        self._tally = Tally()
        try:
            return {"clips": self._decode(request), "frames": self._tally.counts()}
        except TransientError as error:
            self._drop(request.unit)  # after a failed read, FFmpeg has lost its position in the file
            return {"reason": str(error), "retry_after_s": error.retry_after_s}
        except StoreRefuses as error:  # a worker that is set up wrongly; not the video's fault
            self._drop(request.unit)
            return {"reason": str(error), "retry_after_s": _REFUSED_RETRY_S}
        except EsspError as error:
            self._drop(request.unit, damaged=True)
            return _failure(error)
        except Exception:
            self._drop(request.unit)
            raise

    def _decode(self, request: Request) -> list[int | dict[str, Any]]:
        failpoint("decoder-child.asked")
        unit = request.unit
        raw = is_raw(unit.recipe.codec)
        shapes, dtypes = clip_shapes(unit), clip_dtypes(unit.recipe)
        values = [
            self._raw_values(of_clip, dtypes, slot, unit.recipe.motion) if raw else []
            for of_clip, slot in zip(shapes, request.slots, strict=True)
        ]
        frames = [
            [
                frame_buffer(shape, dtype, value)[1] if value is not None else np.empty(shape, dtype)
                for shape, dtype, value in zip_longest(of_clip, dtypes, into[: len(of_clip)])
            ]
            for of_clip, into in zip(shapes, values, strict=True)
        ]
        motions = [
            [frame_buffer(motion_of(of_clip[0]), DTYPE, into[-1] if raw else None)] if unit.recipe.motion else []
            for of_clip, into in zip(shapes, values, strict=True)
        ]
        errors, colours = self._read(unit, frames, [motion for of_clip in motions for _, motion in of_clip])
        failpoint("decoder-child.decoded")
        if any(errors):
            self._drop(unit, damaged=True)
        clips: list[int | dict[str, Any]] = []
        for arrays, of_clip, into, slot, seen, error in zip(
            frames, motions, values, request.slots, colours, errors, strict=True
        ):
            if error is not None:
                clips.append(_failure(error))
                continue
            for value, _ in of_clip:
                complete(value)
            if raw:
                for value, colour in zip(into, seen, strict=False):
                    complete(value, colour)
                clips.append(self._raw_bytes(list(map(len, into)), slot, bool(of_clip)))
            else:
                encoded = [encode(array, unit.recipe.codec, c) for array, c in zip(arrays, seen, strict=True)]
                encoded += [value for value, _ in of_clip]
                whole = encoded[0] if len(encoded) == 1 else joined(encoded, motion=bool(of_clip))
                clips.append(self._store(whole, slot))
        return clips

    def _read(
        self, unit: DecodeSeed, frames: Sequence[Sequence[NDArray[Any]]], motions: Sequence[Motion]
    ) -> tuple[list[BadVideo | None], list[list[Colour | None]]]:
        """Fill the frames of each view of each seed, view by view, and their motion if it is wanted. Returns for each
        seed its error, and the colour space of each view if its values are not RGB."""
        errors, first = self._read_first(unit, [of_clip[0] for of_clip in frames], motions)
        colours = [[colour] for colour in first]
        for number, (video, view) in enumerate(zip(unit.further, unit.recipe.views[1:], strict=True)):
            targets = [of_clip[1 + number] for of_clip in frames]
            try:
                reader = self._videos.reader(video)
                reader.tally = self._tally
                found = reader.read(
                    [seed.views[number] for seed in unit.seeds], view.resize, targets, strict=unit.recipe.strict
                )
            except BadVideo as error:
                raise _of_view(view.name, error) from error
            errors = [
                known or (None if error is None else _of_view(view.name, error))
                for known, error in zip(errors, found, strict=True)
            ]
            for seen, colour in zip(colours, reader.colours, strict=True):
                seen.append(colour)
        return errors, colours

    def _read_first(
        self, unit: DecodeSeed, frames: Sequence[NDArray[Any]], motions: Sequence[Motion]
    ) -> tuple[list[BadVideo | None], list[Colour | None]]:
        """Fill the frames of the only or first view."""
        resize, strict = unit.recipe.resize, unit.recipe.strict
        if is_of_records(unit):
            records = self._records
            records.tally = self._tally
            errors = records.read(unit.video, unit.seeds, resize, frames, strict=strict)
            return errors, records.colours
        reader = self._videos.reader(unit.video, motion=unit.recipe.motion)
        reader.tally = self._tally
        errors = reader.read(unit.seeds, resize, frames, strict=strict, motions=motions)
        return errors, reader.colours

    def _drop(self, unit: DecodeSeed, *, damaged: bool = False) -> None:
        """Close what was read: the next unit opens it again; if it seems damaged, bypassing the decoder's cache."""
        for video in _videos(unit):
            self._videos.drop(video, damaged=damaged)
        self._records.drop(unit.video, damaged=damaged)

    def _is_local(self, video: Video) -> bool:
        """Whether it is on a local disk, where reading again gives the same result."""
        try:
            store, key = self._stores.resolve(video.uri, video=True)
            return store.local_path(key) is not None
        except EsspError:
            return True  # it is not in any store

    def _raw_values(self, shapes: Shapes, dtypes: Sequence[str], slot: Slot, motion: bool) -> list[memoryview]:
        """The raw value of each view in a slot, in which frames are written, and of the motion, if wanted."""
        sizes = [raw_bytes(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        if motion:
            sizes.append(raw_bytes(motion_of(shapes[0]), DTYPE))
        places = begins(sizes) if len(sizes) > 1 else [0]
        memory = self._memory[slot.start : slot.start + slot.size]
        return [memory[begin : begin + size] for begin, size in zip(places, sizes, strict=False)]

    def _raw_bytes(self, sizes: Sequence[int], slot: Slot, motion: bool) -> int:
        """The size of the value that raw values of these sizes are in a slot."""
        if len(sizes) == 1:
            return sizes[0]
        write_head(self._memory[slot.start : slot.start + slot.size], sizes, motion=motion)
        return joined_bytes(sizes)

    def _store(self, value: Buffer, slot: Slot) -> int | dict[str, Any]:
        size = len(value)
        if size > slot.size:
            return _failure(BadVideo("the frames do not compress; use another codec for clips", "limit"))
        self._memory[slot.start : slot.start + size] = value
        return size


def _videos(unit: DecodeSeed) -> Iterator[Video]:
    """The videos of a unit: one, or one for each view."""
    yield unit.video
    yield from unit.further


def _of_view(name: str, error: BadVideo) -> BadVideo:
    return BadVideo(f"view {name}: {error}", error.kind)


def _blames(answer: dict[str, Any]) -> bool:
    """Whether one or all clips could not be decoded."""
    return "kind" in answer or any(isinstance(clip, dict) for clip in answer.get("clips", ()))


def _failure(error: EsspError) -> dict[str, Any]:
    return {"reason": str(error), "kind": getattr(error, "kind", PermanentError.kind)}


def _limit(which: int, value: int) -> None:
    """Set a soft limit, at most the hard one."""
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, even during a decode.

    Linux only; elsewhere the process notices the closed connection after its current work.
    """
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call
            os.kill(os.getpid(), signal.SIGKILL)


def _confine(config: ChildConfig) -> None:
    """Set limits that hold even without the parent.

    The process can write to sockets and shared memory, but not to files. If the kernel has Landlock, it can also not
    change existing files, nor access the memory of other processes.
    """
    _limit(resource.RLIMIT_AS, config.address_bytes)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confine(programs=not are_local(config.stores))


def main(arguments: Sequence[str]) -> None:
    """Answer requests until the connection is closed."""
    _die_with_parent()
    connection, memory_fd, *blocks_fd = map(int, arguments)
    channel = Channel(connection)
    with suppress(EOFError, ConnectionError):
        config = ChildConfig.unpacked(channel.receive())
        os.environ.update(config.environment)
        _confine(config)
        child = Child(config, memory_fd, BlockClient(Connection(blocks_fd[0])) if blocks_fd else None)
        channel.send(READY)
        while True:
            message = channel.receive()
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + 2 * config.unit_s))
            channel.send(json.dumps(_answer(child, message)).encode())


def _answer(child: Child, message: bytes) -> dict[str, Any]:
    try:
        return child.answer(Request.unpacked(message))
    except Exception as error:  # noqa: BLE001  sent to the parent's log: if that is a file, this process cannot write to it
        kind = "limit" if isinstance(error, MemoryError) else "crashed"
        return {"failed": traceback.format_exc(), "kind": kind}


if __name__ == "__main__":
    main(sys.argv[1:])

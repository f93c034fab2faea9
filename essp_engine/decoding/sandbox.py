"""Decoding in a sandbox: one child process, replaced when it crashes, hangs or has served long enough.

The parent never opens a video. It sends a work unit, waits for a limited time, and finds the clips in shared memory, in
the form of cache values. If a child dies, hangs, or has an unexpected error, the seeds of its unit are tried once more,
each alone, in a new child; a seed that fails again is a `BadVideo` of kind `crashed`, `timeout` or `limit` (of
memory). So a child killed from outside (out of memory, an operator) only costs time. That time is bounded: seeds whose
turn would come too late are given up untried (`timeout`). Otherwise a video that hangs at each of its seeds would block
this decoder, then the next one that gets its message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import Pipe
from typing import Any

from essp_common.cache.port import Buffer
from essp_common.errors import BadVideo, EsspError, PermanentError, TransientError, Unavailable, VideoFault
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.runtime import confinement, metrics
from essp_common.runtime.child_process import ChildProcess, answer_of, one_thread
from essp_common.runtime.shared_slots import SharedMemory, Slot
from essp_engine.decoding.block_cache import BlockCache, BlockServer
from essp_engine.decoding.protocol import READY, ChildConfig, Request, clip_shapes, of_one_seed, slot_bytes

log = logging.getLogger(__name__)

_FRAMES = cache(metrics.FRAMES.labels)
"""Counters by label, cached: looking one up takes longer than counting."""
_START_S = 60.0
_TIMES_ALONE = 4
"""After this many times `timeout_s`, no further seed of a unit is tried alone. One that has begun may finish."""
_TASK = "decodes videos"


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """Configuration and limits of the child."""

    config: ChildConfig
    timeout_s: float
    """Maximum time for one work unit."""
    units: int
    """Units after which a child is replaced."""
    clip_bytes: int
    """Maximum size of all clips of one unit."""


Outcome = Buffer | EsspError
"""A clip as a cache value, or the error."""


class Sandbox:
    """One child and the memory shared with it. Used from one thread."""

    def __init__(self, options: SandboxOptions, videos: BlockCache | None = None) -> None:
        """`videos`: the cache of compressed video that the children share, if there is one."""
        self._options = options
        self._videos = videos
        self._memory = SharedMemory()
        self._child: _Child | None = None
        self._told = ""
        """The last traceback in the log."""

    @property
    def pid(self) -> int | None:
        """The process id of the child, if it is running."""
        return self._child.process.pid if self._child is not None else None

    def start(self) -> None:
        """Start the child before the first unit needs it. Raises `Unavailable`."""
        self._started()

    def decode(self, unit: DecodeSeed) -> list[Outcome]:
        """The clip of each seed, or the error. Raises `TransientError` if trying again may help."""
        try:
            return self._attempt(unit)
        except _ChildLost as lost:
            if lost.kind == "timeout" and len(unit.seeds) == 1:
                return [_bad(lost)]
            log.warning("decoder child %s on %s; trying its seeds again, one by one", lost, unit.video.id)
            self._end_child()
            if self._videos is not None:
                self._videos.drop(f"{unit.video.uri} ")  # perhaps damaged bytes were the reason
        ends_s = time.monotonic() + _TIMES_ALONE * self._options.timeout_s
        return [self._decode_alone(unit, position, ends_s) for position in range(len(unit.seeds))]

    def close(self) -> None:
        """End the child and release the memory. Idempotent."""
        self._end_child()
        self._memory.close()

    def _decode_alone(self, unit: DecodeSeed, position: int, ends_s: float) -> Outcome:
        if time.monotonic() >= ends_s:
            others = f"the {position} before it in its message took {_TIMES_ALONE} times {self._options.timeout_s:g} s"
            return BadVideo(f"the decoder had no time to try it alone: {others}", "timeout")
        try:
            return self._attempt(of_one_seed(unit, unit.seeds[position]))[0]
        except _ChildLost as lost:
            return _bad(lost)

    def _attempt(self, unit: DecodeSeed) -> list[Outcome]:
        try:
            sizes = [slot_bytes(shapes, unit.recipe) for shapes in clip_shapes(unit)]
            self._check_size(sum(sizes))
        except EsspError as error:
            return [error] * len(unit.seeds)
        slots: list[Slot] = []
        try:
            for size in sizes:
                slots.append(self._memory.take(size))
            answer = self._ask(Request(self._memory.size, slots, unit).packed())
            clips: Sequence[Any] = answer.get("clips", ())
            if not clips and "retry_after_s" in answer:
                raise Unavailable(answer["reason"], answer["retry_after_s"])
            for what, count in answer.get("frames", {}).items():
                if count:
                    _FRAMES(what).inc(count)
        except (_ChildLost, TransientError):
            for slot in slots:
                self._memory.give_back(slot)
            raise
        return [self._outcome(slot, clip) for slot, clip in zip(slots, clips or [answer] * len(slots), strict=True)]

    def _outcome(self, slot: Slot, clip: int | dict[str, Any]) -> Outcome:
        if isinstance(clip, int) and 2 * clip > slot.size:
            return self._memory.view(slot, clip)
        try:
            # Copy a small value, so that it does not occupy a large slot.
            return self._memory.copy(slot, clip) if isinstance(clip, int) else _error(clip)
        finally:
            self._memory.give_back(slot)

    def _check_size(self, size: int) -> None:
        if size > self._options.clip_bytes:
            message = f"the clips of one message need {size} bytes, the limit is {self._options.clip_bytes}"
            raise BadVideo(f"{message} (ESSP_DECODER_CLIP_BYTES)", "limit")

    def _ask(self, request: bytes) -> dict[str, Any]:
        child = self._started()
        try:
            child.channel.send(request)
            answer = answer_of(child.channel.receive(self._options.timeout_s))
        except TimeoutError as error:
            self._end_child()
            raise _ChildLost(f"took longer than {self._options.timeout_s:g} s", "timeout") from error
        except (EOFError, OSError) as error:
            raise _ChildLost(self._end_child(), "crashed") from error
        if "failed" in answer:
            raise self._failed(answer["failed"], answer.get("kind") == "limit")
        child.units += 1
        if child.units >= self._options.units:
            self._end_child()
        return answer

    def _failed(self, traceback: str, out_of_memory: bool) -> _ChildLost:
        """The error for an unexpected one in the child. Its traceback is logged, but not for each seed of a video."""
        if out_of_memory:
            return _ChildLost("needs more memory than a child may have", "limit")
        if traceback != self._told:
            self._told = traceback
            log.error("unexpected error in a decoder's child:\n%s", traceback)
        return _ChildLost(f"failed: {traceback.splitlines()[-1]}", "crashed")

    def _started(self) -> _Child:
        """The child, started if necessary. Raises `Unavailable` if it does not start."""
        if self._child is not None:
            return self._child
        try:
            child = self._child = _Child(self._memory.fd, self._videos)
        except OSError as error:
            raise Unavailable(f"the process that {_TASK} cannot be started: {error.strerror}") from error
        try:
            config = self._options.config
            child.channel.send(replace(config, environment=confinement.of_stores(config.stores)).packed())
            ready = child.channel.receive(_START_S) == READY
        except TimeoutError as error:
            self._end_child()
            raise Unavailable(f"the process that {_TASK} was not ready within {_START_S:g} s") from error
        except (EOFError, OSError):
            ready = False
        if not ready:
            raise Unavailable(f"the process that {_TASK} {self._end_child()} before it was ready")
        return child

    def _end_child(self) -> str:
        """Kill the child, which has no state to save. Returns how it ended."""
        child, self._child = self._child, None
        return "" if child is None else child.end()


class _Child(ChildProcess):
    def __init__(self, memory_fd: int, videos: BlockCache | None) -> None:
        self.units = 0
        self._server: BlockServer | None = None
        files = [memory_fd]
        with ExitStack() as passed:
            if videos is not None:
                served, asks = Pipe()
                passed.enter_context(asks)
                self._server = BlockServer(videos, served)
                files.append(asks.fileno())
            environment = one_thread(confinement.environment()) | {"PYTHONDONTWRITEBYTECODE": "1"}
            super().__init__("essp_engine.decoding.child", _TASK, files=files, environment=environment)

    def end(self, patience_s: float = 0.0) -> str:
        fate = super().end(patience_s)
        if self._server is not None:
            self._server.join()
        return fate


class _ChildLost(Exception):
    """The child crashed, failed, or did not answer in time."""

    def __init__(self, message: str, kind: VideoFault) -> None:
        super().__init__(message)
        self.kind = kind


def _bad(lost: _ChildLost) -> BadVideo:
    return BadVideo(f"the decoder {lost}", lost.kind)


def _error(failure: dict[str, Any]) -> EsspError:
    kind = failure["kind"]
    if kind == PermanentError.kind:
        return PermanentError(failure["reason"])
    return BadVideo(failure["reason"], kind)

"""Decoding behind a wall: one child process, replaced when it crashes, hangs or has served long enough.

The parent never opens a video. It sends a work unit, waits for so long, and finds the clips in memory shared with the
child, in the form of cache values. What a child does not survive costs its unit at most: the seeds of a unit that
brought it down are tried once more, each alone, and those that do it again are `BadVideo` of kind `crashed` or
`timeout`. A child killed from outside (out of memory, an operator) thus costs nothing but time.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

from essp_common.errors import BadVideo, EsspError, PermanentError, TransientError, Unavailable
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from services.decoder.child import MEMORY_SIZE, READY, Greeting
from services.decoder.rooms import Room, rooms

log = logging.getLogger(__name__)

_MIN_MEMORY = 1 << 24
_START_S = 60.0
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
"""One thread a child: several run side by side."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How the child is kept."""

    greeting: Greeting
    timeout_s: float
    """Longest time for one work unit."""
    units: int
    """A child is replaced after so many."""
    clip_bytes: int
    """Most bytes of shared memory."""


Outcome = bytes | EsspError
"""A clip as a value of the cache, or why there is none."""


class Sandbox:
    """One child and the memory shared with it. Used from one thread."""

    def __init__(self, options: SandboxOptions) -> None:
        self._options = options
        self._memory_fd = _anonymous_memory()
        self._memory = memoryview(b"")
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        return self._child.process.pid if self._child is not None else None

    def start(self) -> None:
        """Start the child, so that the first unit need not wait for it. Raises `Unavailable`."""
        self._started()

    def decode(self, unit: DecodeSeed) -> list[Outcome]:
        """For each seed its clip, or what is wrong. Raises `TransientError` when trying again may help."""
        try:
            return self._attempt(unit)
        except _Lost as lost:
            log.warning("decoder child %s on %s; its seeds are tried again, one by one", lost, unit.video.id)
        return [self._alone(unit, position) for position in range(len(unit.seeds))]

    def close(self) -> None:
        """End the child and release the memory. Idempotent."""
        self._end_child()
        self._memory = memoryview(b"")
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1

    def _alone(self, unit: DecodeSeed, position: int) -> Outcome:
        single = DecodeSeed()
        single.CopyFrom(unit)
        del single.seeds[:]
        single.seeds.append(unit.seeds[position])
        try:
            return self._attempt(single)[0]
        except _Lost as lost:
            return BadVideo(f"the decoder {lost}", lost.kind)

    def _attempt(self, unit: DecodeSeed) -> list[Outcome]:
        try:
            places = rooms(unit)
            self._make_room(places)
        except EsspError as error:
            return [error] * len(unit.seeds)
        answer = self._ask(MEMORY_SIZE.pack(len(self._memory)) + unit.SerializeToString())
        if "clips" in answer:
            return [self._outcome(place, clip) for place, clip in zip(places, answer["clips"], strict=True)]
        if "retry_after_s" in answer:
            raise TransientError(answer["reason"], answer["retry_after_s"])
        return [_error(answer)] * len(unit.seeds)

    def _outcome(self, place: Room, clip: int | dict[str, Any]) -> Outcome:
        if isinstance(clip, dict):
            return _error(clip)
        return bytes(self._memory[place.start : place.start + clip])

    def _make_room(self, places: Sequence[Room]) -> None:
        needed = places[-1].stop if places else 0
        if needed > self._options.clip_bytes:
            message = f"the clips of one message would take {needed} bytes, the limit is {self._options.clip_bytes}"
            raise BadVideo(f"{message} (ESSP_DECODER_CLIP_BYTES)", "limit")
        if needed > len(self._memory):
            size = max(_MIN_MEMORY, 1 << (needed - 1).bit_length())
            os.ftruncate(self._memory_fd, size)
            self._memory = memoryview(mmap.mmap(self._memory_fd, size))

    def _ask(self, request: bytes) -> dict[str, Any]:
        child = self._started()
        try:
            child.connection.send_bytes(request)
            if not child.connection.poll(self._options.timeout_s):
                self._end_child()
                raise _Lost(f"took longer than {self._options.timeout_s:g} s", "timeout")
            answer: dict[str, Any] = json.loads(child.connection.recv_bytes())
        except (EOFError, OSError) as error:
            code = self._end_child()
            raise _Lost(f"crashed (exit status {code})", "crashed") from error
        child.units += 1
        if child.units >= self._options.units:
            self._end_child()
        return answer

    def _started(self) -> _Child:
        """The child, ready. Raises `Unavailable` when it does not get there."""
        if self._child is not None:
            return self._child
        child = self._child = _Child(self._options.greeting, self._memory_fd)
        try:
            ready = child.connection.poll(_START_S) and child.connection.recv_bytes() == READY
        except (EOFError, OSError):
            ready = False
        if not ready:
            raise Unavailable(f"the decoder's child process does not start (exit status {self._end_child()})")
        return child

    def _end_child(self) -> int | None:
        child, self._child = self._child, None
        return None if child is None else child.end()


class _Child:
    def __init__(self, greeting: Greeting, memory_fd: int) -> None:
        self.connection, theirs = Pipe()
        self.units = 0
        command = [sys.executable, "-m", "services.decoder.child", str(theirs.fileno()), str(memory_fd)]
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory_fd),
                env=os.environ | _ENVIRONMENT,
                process_group=0,  # an interrupt at the terminal is for the parent, which drains
            )
        self.connection.send_bytes(greeting.to_json())

    def end(self) -> int:
        """Kill the process (it holds nothing) and give its exit status."""
        self.connection.close()
        self.process.kill()
        return self.process.wait()


class _Lost(Exception):
    """The child did not answer."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


def _error(told: dict[str, Any]) -> EsspError:
    kind = told["kind"]
    if kind == PermanentError.kind:
        return PermanentError(told["reason"])
    return BadVideo(told["reason"], kind)


def _anonymous_memory() -> int:
    """A file descriptor of memory that other processes can map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("essp-clips", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

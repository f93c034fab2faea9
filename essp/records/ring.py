"""Memory that several processes of a machine share: batches in slots, and the board that says whose each is.

    address ──▶ memory of one process (memfd): head │ board │ board │ texts and slots, as they are needed
                two pipes: bells, for members that wait for a batch, and for the feeder that waits for a slot

Others open memory and bells through /proc, under the descriptors that the address names. So there is no file, and
nothing to remove: the kernel frees all of it with the last process that has it open, however those end.

**A kill at any instruction.** A step (`handover.py`) is made on the board that is not in use, under a lock of the
kernel, and one store then says which board is in use. Each process holds another such lock for as long as it lives; who
waits looks whether the others still hold theirs. The kernel takes back the locks of a process with the process, so
there is nothing to time out, and a process that was stopped for an hour is no dead one.

Bells are hints: who waits looks again after `_LOOK_S`, so a bell that a dying process did not ring is a short delay.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from essp.records.handover import READY_WORD, WAIT, Board, Slot
from essp_common.errors import ConfigError

_T = TypeVar("_T")

_LOOK_S = 0.1
_NAPS, _NAP_S = 10, 5e-5
_HEAD = 64
_MAGIC = 0x455353505249_01
_IN_USE, _MEMBERS = 1, 2
"""Words of the head, behind the magic."""
_LOCK = struct.Struct("hhqqi4x")
"""`struct flock` where files may be large."""
_BOARD, _FEEDER, _FIRST_MEMBER = range(3)
"""Bytes of the memory that are locked: the board, and one that each process holds as long as it lives."""
_GROWTH = 1 << 20


class Address(NamedTuple):
    """Where another process of this machine finds a ring: as text, `PID:5:6:7:TOKEN`."""

    process: int
    memory: int
    members_bell: int
    feeder_bell: int
    token: str

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises `ConfigError`."""
        try:
            process, *files, token = text.split(":")
            memory, members_bell, feeder_bell = map(int, files)
            return cls(int(process), memory, members_bell, feeder_bell, token)
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is not the address of a shared loader; take its `address`", field="address"
            ) from error


class Ended(Exception):
    """The process that made the ring has closed it, or is gone."""


class Ring:
    """A ring as one thread of this process sees it. After a fork, the child has to open its own."""

    def __init__(self, address: Address) -> None:
        """Open it. Raises `Ended` if it is not there any more."""
        self.process = os.getpid()
        self.member = WAIT
        self._files: list[int] = []
        self._finalizer = weakref.finalize(self, _close, self._files)
        self._finalizer.atexit = False
        self._mutex = threading.Lock()
        self._looked_s = 0.0
        opened.add(self)
        try:
            self._memory_file = self._opened(address, address.memory, _memory_name(address.token))
            self._members_bell = self._opened(address, address.members_bell, "pipe:")
            self._feeder_bell = self._opened(address, address.feeder_bell, "pipe:")
        except OSError as error:
            self.close()
            raise Ended from error
        self._map = _mapped(self._memory_file)
        self._head = memoryview(self._map)[:_HEAD].cast("q")
        if self._head[0] != _MAGIC:
            self.close()
            raise ConfigError(
                "another release of essp shares this loader; use the same one in all processes",
                field="address",
                code="conflict",
            )
        self._board = Board(self._head[_MEMBERS])
        size = 8 * self._board.size
        self._boards = [memoryview(self._map)[begin : begin + size].cast("q") for begin in (_HEAD, _HEAD + size)]

    def _opened(self, address: Address, number: int, target: str) -> int:
        path = f"/proc/{address.process}/fd/{number}"
        if not os.readlink(path).startswith(target):  # closed, and the number is another file's by now
            raise FileNotFoundError(path)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._files.append(file)
        return file

    def close(self) -> None:
        """Close what was opened, which also says that this process is gone. Idempotent."""
        _close(self._files)

    @property
    def is_open(self) -> bool:
        """In this process: a fork closes it in the child."""
        return bool(self._files)

    # --- steps ---

    def step(self, operation: Callable[..., _T], *arguments: object) -> _T:
        """Call a method of `Board`: wholly, or not at all if this process dies."""
        board, head = self._board, self._head
        with self._mutex:
            try:
                fcntl.fcntl(self._memory_file, fcntl.F_OFD_SETLKW, _LOCKED)
                used = head[_IN_USE]
                words = self._boards[1 - used]
                words[:] = self._boards[used]
                board.words = words
                board.wake_members, board.wake_feeder = 0, False
                answer = operation(board, *arguments)
                head[_IN_USE] = 1 - used
            finally:
                fcntl.fcntl(self._memory_file, fcntl.F_OFD_SETLK, _UNLOCKED)
            wake_members, wake_feeder = board.wake_members, board.wake_feeder
        if wake_members:
            _ring(self._members_bell, wake_members)
        if wake_feeder:
            _ring(self._feeder_bell, 1)
        return answer

    def take(self, epoch: int) -> Slot | int:
        """The next batch of an epoch, or what `Board.take` answers."""
        answer = self.step(_take, self.member, epoch, False)
        if answer != WAIT:
            return answer
        self._nap()
        return self.step(_take, self.member, epoch, True)

    def bury_the_dead(self) -> bool:
        """Whether there were any: members whose process is gone."""
        return self.step(self._bury)

    def _bury(self, board: Board) -> bool:
        others = (member for member, _ in board.processes() if member != self.member)
        dead = [member for member in others if not self._is_held(_FIRST_MEMBER + member)]
        for member in dead:
            board.bury(member)
        return bool(dead)

    def join(self) -> int:
        """Be a member; which one. `WAIT`: there are as many as there may be."""
        self.bury_the_dead()
        return self.step(self._join)

    def _join(self, board: Board) -> int:
        member = board.free_member()
        if member != WAIT:
            self._lock(_FIRST_MEMBER + member, fcntl.F_WRLCK)
            board.join(member, self.process)
            self.member = member
        return member

    def leave(self) -> None:
        """Be no member any more, and let another one have the place. Idempotent."""
        if self.member != WAIT:
            self.step(self._leave)

    def _leave(self, board: Board) -> None:
        board.bury(self.member)
        self._lock(_FIRST_MEMBER + self.member, fcntl.F_UNLCK)  # in this step: whoever finds the place free can hold it
        self.member = WAIT

    def feed(self) -> None:
        """Be the one that writes."""
        self._lock(_FEEDER, fcntl.F_WRLCK)

    @property
    def is_fed(self) -> bool:
        """The process that writes is alive. Asked by another one."""
        return self._is_held(_FEEDER)

    def _lock(self, byte: int, how: int) -> None:
        fcntl.fcntl(self._memory_file, fcntl.F_OFD_SETLK, _LOCK.pack(how, os.SEEK_SET, byte, 1, 0))

    def _is_held(self, byte: int) -> bool:
        """By any other than this object."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self._memory_file, fcntl.F_OFD_GETLK, asked)
        return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    # --- waiting ---

    def _nap(self) -> None:
        """For up to a millisecond, until a batch may be ready.

        To wake a process costs who rings the bell more than to write a small batch; who naps wakes by itself.
        """
        for _ in range(_NAPS):
            if self._boards[self._head[_IN_USE]][READY_WORD]:  # not under the lock: it may be wrong
                return
            time.sleep(_NAP_S)

    def wait_as_member(self) -> bool:
        """Until a batch may be ready. True: it is time to look at the other processes."""
        return self._wait(self._members_bell)

    def wait_as_feeder(self) -> bool:
        """Until a slot may be free. True: it is time to look at the members."""
        return self._wait(self._feeder_bell)

    def _wait(self, bell: int) -> bool:
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            return True
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        poll.poll(_LOOK_S * 1000)
        with suppress(BlockingIOError):  # another one heard it first
            os.read(bell, 1)
        return False

    # --- bytes ---

    def memory_of(self, slot: Slot) -> mmap.mmap:
        """What holds this slot."""
        if slot.place + slot.size > len(self._map):
            self._map = _mapped(self._memory_file)
        return self._map

    def text(self) -> bytes:
        """What `begin` or `end` of the board were last given."""
        place, size = self.step(Board.text)
        return os.pread(self._memory_file, size, place)


class Home:
    """What a ring lives in, in the process that made it."""

    def __init__(self, members: int) -> None:
        """`members`: how many there may be at a time. Raises `ConfigError`."""
        if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_OFD_SETLKW"):
            raise ConfigError(
                "a loader can be shared between processes on Linux only; give each process its own loader",
                code="unsupported",
            )
        board = Board(members)
        token = uuid.uuid4().hex
        opened.add(self)
        memory = os.memfd_create(_memory_name(token).removeprefix("/memfd:"), os.MFD_CLOEXEC)
        members_bell, *ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        feeder_bell, *more_ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._files = [memory, members_bell, feeder_bell, *ends, *more_ends]
        self._finalizer = weakref.finalize(self, _close, self._files)
        self._finalizer.atexit = False
        self._memory_file = memory
        self._end = 0
        self._mapped = mmap.mmap(-1, mmap.PAGESIZE)
        self.grow(_HEAD + 2 * 8 * board.size)
        struct.pack_into("qqq", self._mapped, 0, _MAGIC, 0, members)
        self.address = Address(os.getpid(), memory, members_bell, feeder_bell, token)

    def grow(self, size: int) -> int:
        """So many bytes more; where they begin. Raises `ConfigError` if there is no memory for them."""
        begin = -(-self._end // 64) * 64
        end = begin + size
        if end > len(self._mapped):
            whole = -(-end // _GROWTH) * _GROWTH
            try:
                os.posix_fallocate(self._memory_file, 0, whole)  # else a write would kill the process
                self._mapped = mmap.mmap(self._memory_file, whole)
            except OSError as error:
                raise ConfigError(
                    f"this machine has no {whole} bytes of shared memory ({error.strerror}) for the batches of "
                    "a shared loader; give share() less, or make batches smaller",
                    field="memory",
                    code="range",
                ) from error
        self._end = end
        return begin

    def write(self, data: bytes) -> int:
        """Bytes that are to stay; where they begin."""
        place = self.grow(len(data))
        self._mapped[place : place + len(data)] = data
        return place

    @property
    def memory(self) -> mmap.mmap:
        """All of it."""
        return self._mapped

    def close(self) -> None:
        """Nobody else can open it any more. Idempotent."""
        _close(self._files)


opened: weakref.WeakSet[Ring | Home] = weakref.WeakSet()
"""In this process."""


def _close_after_fork() -> None:
    """A child would hold the locks of its parent, which would then never seem to be gone."""
    for one in list(opened):
        one.close()


os.register_at_fork(after_in_child=_close_after_fork)


def _take(board: Board, member: int, epoch: int, waits: bool) -> Slot | int:
    answer = board.take(member, epoch, waits)
    return board.slot(answer) if answer >= 0 else answer


def _close(files: list[int]) -> None:
    while files:
        os.close(files.pop())


def _mapped(file: int) -> mmap.mmap:
    """All of it. A map keeps its file open, so it gets one of its own: the locks are to go with `file`."""
    own = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(own, 0)
    finally:
        os.close(own)


def _memory_name(token: str) -> str:
    return f"/memfd:essp-records-{token}"


def _ring(bell: int, times: int) -> None:
    with suppress(BlockingIOError):  # it rings already
        os.write(bell, b"." * times)


_LOCKED = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _BOARD, 1, 0)
_UNLOCKED = _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, _BOARD, 1, 0)

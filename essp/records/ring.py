"""Memory shared by several processes of a machine: batches in slots, and the board that says which process has which.

    address ──▶ memory of one process (memfd): head │ board │ board │ texts and slots, as they are needed
                two pipes: bells, for members that wait for a batch, and for the feeder that waits for a slot

Other processes open memory and bells through /proc, by the descriptors in the address. So there is no file to remove:
the kernel frees everything when the last process that has it open ends, however it ends.

**A kill at any instruction.** A step (`handover.py`) is made on the board that is not in use, under a kernel lock, and
a single store then switches to that board. Each process holds another such lock for as long as it lives; waiting
processes check whether the others still hold theirs. The kernel releases the locks of a process when it ends, so no
timeouts are needed, and a process that was suspended for an hour does not count as dead.

Bells are only hints: a waiting process checks again after `_LOOK_S`, so a bell that a dying process did not ring causes
only a short delay.
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
"""Words of the head, after the magic number."""
_LOCK = struct.Struct("hhqqi4x")
"""`struct flock` with 64-bit offsets."""
_BOARD, _FEEDER, _FIRST_MEMBER = range(3)
"""Bytes of the memory that are locked: one for the board, and one that each process holds while it lives."""
_GROWTH = 1 << 20


class Address(NamedTuple):
    """The address by which another process of this machine finds a ring, as text: `PID:5:6:7:TOKEN`."""

    process: int
    memory: int
    members_bell: int
    feeder_bell: int
    token: str

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address. Raises `ConfigError`."""
        try:
            process, *files, token = text.split(":")
            memory, members_bell, feeder_bell = map(int, files)
            return cls(int(process), memory, members_bell, feeder_bell, token)
        except ValueError as error:
            raise ConfigError(
                f"{text!r} is not the address of a shared loader; take its `address`", field="address"
            ) from error


class Ended(Exception):
    """The process that made the ring has closed it, or has ended."""


class Ring:
    """A ring as used by one thread of this process. After a fork, the child must open its own."""

    def __init__(self, address: Address) -> None:
        """Open the ring. Raises `Ended` if it no longer exists."""
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
        if not os.readlink(path).startswith(target):  # it was closed, and the number now belongs to another file
            raise FileNotFoundError(path)
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._files.append(file)
        return file

    def close(self) -> None:
        """Close the files, which also releases the locks that show this process is alive. Idempotent."""
        _close(self._files)

    @property
    def is_open(self) -> bool:
        """Whether it is open in this process: a fork closes it in the child."""
        return bool(self._files)

    # --- steps ---

    def step(self, operation: Callable[..., _T], *arguments: object) -> _T:
        """Call a method of `Board`: completely, or not at all if this process dies."""
        board, head = self._board, self._head
        with self._mutex:
            try:
                fcntl.fcntl(self._memory_file, fcntl.F_OFD_SETLKW, _LOCKED)
                used = head[_IN_USE]
                words = self._boards[1 - used]
                # Work on the board that is not in use. A process killed before the switch below leaves the used one
                # untouched.
                words[:] = self._boards[used]
                board.words = words
                board.wake_members, board.wake_feeder = 0, False
                answer = operation(board, *arguments)
                head[_IN_USE] = 1 - used
            finally:
                fcntl.fcntl(self._memory_file, fcntl.F_OFD_SETLK, _UNLOCKED)
            # Ring after releasing the lock: a woken process needs it at once.
            wake_members, wake_feeder = board.wake_members, board.wake_feeder
        if wake_members:
            _ring(self._members_bell, wake_members)
        if wake_feeder:
            _ring(self._feeder_bell, 1)
        return answer

    def take(self, epoch: int) -> Slot | int:
        """Take the next batch of an epoch, or return what `Board.take` answers."""
        answer = self.step(_take, self.member, epoch, False)
        if answer != WAIT:
            return answer
        self._nap()
        return self.step(_take, self.member, epoch, True)

    def bury_the_dead(self) -> bool:
        """Remove members whose process has ended. Returns whether there were any."""
        return self.step(self._bury)

    def _bury(self, board: Board) -> bool:
        others = (member for member, _ in board.processes() if member != self.member)
        dead = [member for member in others if not self._is_held(_FIRST_MEMBER + member)]
        for member in dead:
            board.bury(member)
        return bool(dead)

    def join(self) -> int:
        """Become a member; returns its number, or `WAIT` if the maximum number of members is reached."""
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
        """Stop being a member, and free the place for another one. Idempotent."""
        if self.member != WAIT:
            self.step(self._leave)

    def _leave(self, board: Board) -> None:
        board.bury(self.member)
        # within this step, so that the next process with this number can get the lock
        self._lock(_FIRST_MEMBER + self.member, fcntl.F_UNLCK)
        self.member = WAIT

    def feed(self) -> None:
        """Become the writer."""
        self._lock(_FEEDER, fcntl.F_WRLCK)

    @property
    def is_fed(self) -> bool:
        """Whether the writing process is alive. Called by other processes."""
        return self._is_held(_FEEDER)

    def _lock(self, byte: int, how: int) -> None:
        fcntl.fcntl(self._memory_file, fcntl.F_OFD_SETLK, _LOCK.pack(how, os.SEEK_SET, byte, 1, 0))

    def _is_held(self, byte: int) -> bool:
        """Whether anyone except this object holds the lock."""
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(self._memory_file, fcntl.F_OFD_GETLK, asked)
        return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    # --- waiting ---

    def _nap(self) -> None:
        """Nap for up to a millisecond, until a batch may be ready.

        Waking a process costs the process that rings the bell more than writing a small batch; a napping process wakes
        up by itself.
        """
        for _ in range(_NAPS):
            if self._boards[self._head[_IN_USE]][READY_WORD]:  # read without the lock, so it is only a hint
                return
            time.sleep(_NAP_S)

    def wait_as_member(self) -> bool:
        """Wait until a batch may be ready. Returns True if it is time to check on the other processes."""
        return self._wait(self._members_bell)

    def wait_as_feeder(self) -> bool:
        """Wait until a slot may be free. Returns True if it is time to check on the members."""
        return self._wait(self._feeder_bell)

    def _wait(self, bell: int) -> bool:
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_S:
            self._looked_s = now
            return True
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        poll.poll(_LOOK_S * 1000)
        with suppress(BlockingIOError):  # another process consumed the signal first
            os.read(bell, 1)
        return False

    # --- bytes ---

    def memory_of(self, slot: Slot) -> mmap.mmap:
        """The memory that contains this slot."""
        if slot.place + slot.size > len(self._map):
            self._map = _mapped(self._memory_file)
        return self._map

    def text(self) -> bytes:
        """The text last given to the board's `begin` or `end`."""
        place, size = self.step(Board.text)
        return os.pread(self._memory_file, size, place)


class Home:
    """The memory and the bells of a ring, in the process that made it."""

    def __init__(self, members: int) -> None:
        """`members`: the largest number of simultaneous members. Raises `ConfigError`."""
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
        """Add this many bytes, and return where they begin. Raises `ConfigError` if there is no memory for them."""
        begin = -(-self._end // 64) * 64
        end = begin + size
        if end > len(self._mapped):
            whole = -(-end // _GROWTH) * _GROWTH
            try:
                # reserve the memory now; otherwise a write could kill the process with SIGBUS
                os.posix_fallocate(self._memory_file, 0, whole)
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
        """Store bytes permanently, and return where they begin."""
        place = self.grow(len(data))
        self._mapped[place : place + len(data)] = data
        return place

    @property
    def memory(self) -> mmap.mmap:
        """The whole memory."""
        return self._mapped

    def close(self) -> None:
        """Close it; no other process can open it any more. Idempotent."""
        _close(self._files)


opened: weakref.WeakSet[Ring | Home] = weakref.WeakSet()
"""Rings and homes of this process."""


def _close_after_fork() -> None:
    """Close them in a forked child. It would hold its parent's locks, and the parent would never seem to have ended."""
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
    """Map the whole file through a separate descriptor. A map keeps its file open, but locks must end with `file`."""
    own = os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(own, 0)
    finally:
        os.close(own)


def _memory_name(token: str) -> str:
    return f"/memfd:essp-records-{token}"


def _ring(bell: int, times: int) -> None:
    with suppress(BlockingIOError):  # the pipe is full: it is ringing already
        os.write(bell, b"." * times)


_LOCKED = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _BOARD, 1, 0)
_UNLOCKED = _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, _BOARD, 1, 0)

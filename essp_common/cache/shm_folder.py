"""The folder of a cache in shared memory: its users, its contents, and the leftovers of killed processes.

    /dev/shm/essp-<user id>-<NAME>/
        users           each open cache has a shared lock on it
        state           limit, bytes and number of values; its lock guards every change of the contents
        values/KEY      complete values
        writing/NAME    values that are being written, each locked by its writer; their bytes already count
        spare/SIZE.N    files of freed values, to be overwritten, which costs half as much as new memory; the first to
                        go when room is short. A reader locks the file of its value, so that it is not overwritten.

A process may be killed at any moment. The kernel then releases its locks (flock). The next process that locks the state
sees that a change was begun, and recounts. A process that needs room removes the leftovers of dead writers. The last
cache to be closed removes the folder; if all were killed, the next one that is opened does, under any name. So nothing
outlives a restart, as with a Redis that starts empty. If something else removes the folder, it is created again, empty.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import secrets
import shutil
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from essp_common.errors import CacheFull, ConfigError, EsspError, FlowUnavailable, TransientError
from essp_common.runtime import forks

DEFAULT_BYTES = 2**30

_STATE = struct.Struct("<8s?7xqqqqqqd")
_MAGIC = b"ESSPSHM1"
_PAGE = mmap.PAGESIZE
_CLASSES_PER_DOUBLING = 16
_SMALLEST_SPARE_BYTES = 1 << 16
_MOST_SPARES = 256
_NEVER = float("inf")


_OF_CACHE = frozenset({"state", "values", "writing", "spare", "users"})


@dataclass(slots=True)
class State:
    """The contents of the state file."""

    limit_bytes: int
    begun: bool = False
    """A change was begun. If no process has the lock, the one that began it is dead, and the numbers may be wrong."""
    used_bytes: int = 0
    keys: int = 0
    spare_bytes: int = 0
    """Bytes of spare files, which count in addition to `used_bytes`; both together are within the limit."""
    spares: int = 0
    full_count: int = 0
    expires_s: float = _NEVER
    """No value expires before this time."""

    @classmethod
    def read(cls, file: int) -> State | None:
        """Read the state; None if another release or another program wrote it."""
        data = os.pread(file, _STATE.size, 0)
        if len(data) < _STATE.size or not data.startswith(_MAGIC):
            return None
        _, *fields = _STATE.unpack(data)
        begun, limit, *others = fields
        return cls(limit, begun, *others)

    def write(self, file: int) -> None:
        """Write the state in one call, and thus atomically."""
        held_now = (self.used_bytes, self.keys, self.spare_bytes, self.spares)
        os.pwrite(
            file,
            _STATE.pack(_MAGIC, self.begun, self.limit_bytes, *held_now, self.full_count, self.expires_s),
            0,
        )


class Folder:
    """The folder of one cache, in use by this process. Thread-safe."""

    def __init__(self, parent: Path, name: str, limit_bytes: int | None) -> None:
        """`limit_bytes`: None takes the limit that is already set. Raises `ConfigError`, `TransientError` (no room)."""
        self._url = f"shm://{name}"
        self._root = parent / f"essp-{os.getuid()}-{name}"
        self._asked_bytes = limit_bytes
        self.limit_bytes = limit_bytes or DEFAULT_BYTES
        self.values = f"{self._root}/values/"
        self._writing = f"{self._root}/writing/"
        self._spare = f"{self._root}/spare/"
        self._state_path = f"{self._root}/state"
        self._users = -1
        self._joining = threading.Lock()
        self._token = secrets.token_hex(8)
        """Distinguishes users: containers that share a /dev/shm number their processes independently, and a process may
        open it twice."""
        self._numbers = itertools.count()
        forks.follow(self)
        for other in parent.glob(f"essp-{os.getuid()}-*"):
            _remove_if_unused(other)
        try:
            with self.problems():
                self._join()
        except EsspError:
            _remove_if_unused(self._root)
            raise

    def forked(self) -> None:
        """Replace the lock, which another thread may have held. The lock on `users` is shared: the folder stays until
        both processes have closed it."""
        self._joining = threading.Lock()

    def close(self) -> None:
        """Leave; the last user removes the folder."""
        with self._joining:
            if self._users >= 0:
                os.close(self._users)
                self._users = -1
                _remove_if_unused(self._root)

    @contextmanager
    def locked(self) -> Iterator[State]:
        """Yield the state, to read and change it, while no other process changes anything. Raises `FlowUnavailable`."""
        with self.problems(), self._state_file() as file:
            state = State.read(file)
            if state is None:
                raise FlowUnavailable(
                    f"{self._url}: {self._state_path} was written over; stop what uses it and remove it"
                )
            # A process died during a change, so its numbers may be wrong.
            if state.begun:
                self._count(state)
            # Marked in the file before anything changes, and cleared when the numbers are right again.
            state.begun = True
            state.write(file)
            try:
                yield state
            except EsspError:
                state.begun = False
                state.write(file)
                raise  # after any other error, the next process counts again
            state.begun = False
            state.write(file)

    @contextmanager
    def problems(self) -> Iterator[None]:
        """Convert the system's errors into ESSP's."""
        try:
            yield
        except OSError as error:
            raise self._problem(error) from error

    # --- values ---

    def reserve(self, path: str, size: int, clear: Callable[[State], None]) -> tuple[int, str]:
        """Return a locked file to write, which `rename` moves to this path; its bytes count from now on. Raises
        `CacheFull`.

        `clear`: makes room, if it can.
        """
        size = held(size)
        temporary = f"{self._writing}{self._token}.{os.getpid()}.{next(self._numbers)}"
        with self.locked() as state:
            if state.used_bytes + size > state.limit_bytes + _bytes_of(path):
                clear(state)
            if state.used_bytes + size > state.limit_bytes + _bytes_of(path):
                state.full_count += 1
                raise CacheFull(f"{self._url} holds {state.used_bytes} of {state.limit_bytes} bytes, none for {size}")
            file = self._spare_file(state, size, temporary)
            if file is None:
                if state.used_bytes + state.spare_bytes + size > state.limit_bytes:
                    self._remove_spares(state)
                file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(file, fcntl.LOCK_EX)
                os.ftruncate(file, size)  # so that a recount includes all of it
            state.used_bytes += size
        return file, temporary

    def _spare_file(self, state: State, size: int, temporary: str) -> int | None:
        """Return a file of this size whose value is freed and that has no reader, under a new name; None if there is
        none."""
        begin = f"{size}."
        for name in os.listdir(self._spare) if state.spares else ():
            if name.startswith(begin) and (file := _locked_file(self._spare + name)) is not None:
                os.rename(self._spare + name, temporary)
                state.spares -= 1
                state.spare_bytes -= size
                return file
        return None

    def rename(self, file: int, temporary: str, path: str, expires_s: float) -> None:
        """Move a complete value to its path, replacing another value there."""
        with self.locked() as state:
            state.expires_s = min(state.expires_s, expires_s)
            replaced = _bytes_of(path)
            fcntl.flock(file, fcntl.LOCK_UN)  # for its readers
            os.rename(temporary, path)
            state.used_bytes -= replaced
            state.keys += not replaced

    def give_up(self, temporary: str) -> None:
        """Drop a value that could not be written because /dev/shm is full."""
        with self.locked() as state:
            state.full_count += 1
            self._remove(state, temporary)
            self._remove_spares(state)

    def free(self, state: State, path: str) -> bool:
        """Free a value. Returns whether there was one."""
        size = _bytes_of(path)
        if not size:
            return False
        if size >= _SMALLEST_SPARE_BYTES and state.spares < _MOST_SPARES:
            os.rename(path, f"{self._spare}{size}.{os.stat(path).st_ino}")
            state.spares += 1
            state.spare_bytes += size
        else:
            os.unlink(path)
        state.used_bytes -= size
        state.keys -= 1
        return True

    def remove_dead_writers(self, state: State) -> None:
        """Remove incomplete values whose writers are dead."""
        for name in os.listdir(self._writing):
            with _locked_alone(self._writing + name) as alone:
                if alone:
                    self._remove(state, self._writing + name)

    def _remove(self, state: State, path: str) -> None:
        size = _bytes_of(path)
        os.unlink(path)
        state.used_bytes -= size

    def _remove_spares(self, state: State) -> None:
        for name in os.listdir(self._spare):
            os.unlink(self._spare + name)
        state.spares = state.spare_bytes = 0

    def _count(self, state: State) -> None:
        """Count the contents from the files."""
        values, spares = _sizes(self.values), _sizes(self._spare)
        state.used_bytes = sum(values) + sum(_sizes(self._writing))
        state.keys = len(values)
        state.spare_bytes = sum(spares)
        state.spares = len(spares)
        state.expires_s = 0.0  # unknown: the next search for expired values finds out

    @contextmanager
    def _state_file(self) -> Iterator[int]:
        """Yield the state's file. It is unlocked explicitly, since a child may have been forked with it in the
        meantime."""
        file = self._open_state()
        try:
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _open_state(self) -> int:
        while True:
            if self._users < 0:
                raise FlowUnavailable(f"{self._url} is closed")
            if not os.fstat(self._users).st_nlink:
                self._join()
            try:
                file = os.open(self._state_path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                self._join()
                continue
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file
            os.close(file)  # removed while this one waited

    def _problem(self, error: OSError) -> TransientError:
        if error.errno == errno.ENOSPC:
            return CacheFull(f"{self._root.parent} is full, though {self._url} is not: other programs use it too")
        return FlowUnavailable(f"{self._url}: {error}")

    # --- users ---

    def _join(self) -> None:
        """Become a user of the folder. The first user creates it, or empties it."""
        with self._joining:
            users = self._joined()
            while users is None:
                users = self._joined()
            if self._users >= 0:
                os.close(self._users)
            self._users = users

    def _joined(self) -> int | None:
        """Return the lock; None if the folder was removed, or if the process that was creating it was killed."""
        try:
            _make_own(self._root)
            users = os.open(self._root / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            self._share(users)
            self._agree()
            return users
        except BaseException as error:
            os.close(users)
            if isinstance(error, FileNotFoundError):
                return None
            raise

    def _share(self, users: int) -> None:
        """Take a shared lock. Raises `FileNotFoundError` if the folder was removed in the meantime."""
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        # An exclusive lock is only possible for the first user: any contents are leftovers.
        else:
            _check_linked(users)
            self._make_empty()
        fcntl.flock(users, fcntl.LOCK_SH)
        _check_linked(users)

    def _make_empty(self) -> None:
        """Create the contents again; no one else uses them. The state file comes last: if it exists, the rest is
        complete."""
        if others := _strangers(self._root):
            raise ConfigError(
                f"{self._root} has {others[0]} in it, which is not of a cache; name another cache", code="taken"
            )
        Path(self._state_path).unlink(missing_ok=True)
        for folder in (self.values, self._writing, self._spare):
            shutil.rmtree(folder, ignore_errors=True)
            os.mkdir(folder, 0o700)
        limit_bytes = self._asked_bytes or DEFAULT_BYTES
        room = os.statvfs(self._root)
        if limit_bytes > (there := room.f_blocks * room.f_frsize):
            raise ConfigError(
                f"{self._url}: {self._root.parent} has {there} bytes in all, this cache is to have {limit_bytes}; "
                "name a smaller size (?bytes=...), or make it larger (docker run --shm-size, mount -o remount,size=)",
                code="range",
            )
        file = os.open(self._state_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            State(limit_bytes).write(file)
        finally:
            os.close(file)

    def _agree(self) -> None:
        """Adopt the limit that is already set. Raises `ConfigError` if another one was asked for."""
        file = os.open(self._state_path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            state = State.read(file)
        finally:
            os.close(file)
        if state is None:
            raise ConfigError(
                f"{self._url}: another release of ESSP uses {self._root}; stop it, or name another cache", code="taken"
            )
        if self._asked_bytes not in (None, state.limit_bytes):
            raise ConfigError(
                f"{self._url} is in use with {state.limit_bytes} bytes, not {self._asked_bytes}; "
                "give all processes the same ESSP_CACHE, or name another cache",
                code="taken",
            )
        self.limit_bytes = state.limit_bytes


def held(size: int) -> int:
    """Return the file size for `size` bytes: up to 6 % more, so that other values fit into it later."""
    step = max(_PAGE, (1 << (size - 1).bit_length()) // (2 * _CLASSES_PER_DOUBLING))
    return -(-size // step) * step


def _bytes_of(path: str) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _sizes(folder: str) -> list[int]:
    with os.scandir(folder) as entries:
        return [entry.stat().st_size for entry in entries]


def _make_own(root: Path) -> None:
    """Create the folder, which must belong to this user: any user may write next to it."""
    with suppress(FileExistsError):
        root.mkdir(0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{root} is not a folder that this user alone may open; remove it, or name another cache", code="taken"
        )


def _check_linked(file: int) -> None:
    if not os.fstat(file).st_nlink:
        raise FileNotFoundError(errno.ENOENT, "removed meanwhile")


def _locked_file(path: str) -> int | None:
    """Open and lock the file; None if another process has it locked."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file


@contextmanager
def _locked_alone(path: str) -> Iterator[bool]:
    """Yield whether no living process has the file locked. If so, this process keeps it locked within the block."""
    file = _locked_file(path)
    if file is None:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _remove_if_unused(root: Path) -> None:
    """Remove a cache that no process has open, or the rest of an interrupted removal."""
    if root.is_symlink():
        return
    with suppress(OSError):
        root.rmdir()  # only if it is empty
    with suppress(OSError), _locked_alone(f"{root}/users") as alone:
        if alone and not _strangers(root):
            _remove(root)


def _strangers(root: Path) -> list[str]:
    """Return the contents of a folder that do not belong to a cache: if there are any, the rest may not, either."""
    return sorted(name for name in os.listdir(root) if name not in _OF_CACHE)


def _remove(root: Path) -> None:
    """Remove a cache. `users` goes last: its removal shows those who wait for its lock that the folder is gone."""
    (root / "state").unlink(missing_ok=True)
    for name in ("values", "writing", "spare"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "users").unlink()
    root.rmdir()

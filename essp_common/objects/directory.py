"""Objects as files below a directory: `file:///dir`. The key is the path below it.

A write goes to a temporary file next to its target (`.essp-<32 hexadecimal digits>.tmp`, which `list` hides), which is
flushed to disk and renamed; then the directory is flushed. So after a crash there is the old object or the new one, and
what `put` has returned from is durable. Folders that were created for a failed write are removed.

A temporary file that a crash left behind is removed by a write to the same folder, once it is an hour old. Below a
folder with one writer (`below`), creating a new folder also cleans its siblings: each checkpoint has a folder, which is
never written to again. Each folder is searched at most once an hour.

Reading follows symbolic links, since data sets often consist of them; writing through one that leads out of the root is
refused. `if_absent` needs hard links, which network and FUSE file systems may lack (`ConfigError`).

The first write creates the root. `list` uses the order of S3, an absent folder is empty, and files whose names are not
UTF-8 or contain control characters are left out, since no message could name them.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from essp_common.errors import ConfigError, Conflict, NotFound, StorageFull, Unavailable
from essp_common.objects.keys import checked, is_key
from essp_common.objects.port import ObjectInfo
from essp_common.objects.writes import Writes
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.forks import Mutex
from essp_common.runtime.troubles import Troubles

_TEMPORARY = (".essp-", ".tmp")
_A_TEMPORARY = re.compile(r"\.essp-[0-9a-f]{32}\.tmp")
_STALE_S = 3600.0
"""A temporary file that was not written to for this long has no writer any more."""
_PLACES = 4096
"""Number of folders for which the time of the last search is remembered."""
_BEGINNINGS = 100
"""How often to create a folder that others keep removing; each of them must have deleted a file in it in
the meantime."""
_NO_SUCH_NAME = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP)


class Tidied:
    """When each folder, and its siblings (`/*`), were last searched for leftovers of crashed processes.

    The stores below one root share it: a master has one store per job output, and these are siblings. Only the newest
    entries are kept; a forgotten folder is searched once more. Thread-safe.
    """

    def __init__(self) -> None:
        self._looked_s: dict[str, float] = {}
        """The oldest first."""
        self._lock = Mutex()

    def __len__(self) -> int:
        return len(self._looked_s)

    def is_due(self, place: str) -> bool:
        """Whether a search is due. If so, it counts as done now."""
        now_s = time.monotonic()
        with self._lock.held:
            if now_s - self._looked_s.get(place, -math.inf) < _STALE_S:
                return False
            self._looked_s.pop(place, None)
            self._looked_s[place] = now_s
            if len(self._looked_s) > _PLACES:
                del self._looked_s[next(iter(self._looked_s))]
            return True

    def forget(self, place: str) -> None:
        """Forget a folder that was removed."""
        with self._lock.held:
            self._looked_s.pop(place, None)


class DirectoryStore:
    """An `ObjectStore` in a file system."""

    def __init__(
        self,
        root: str,
        boundary: str = "",
        writes: Writes | None = None,
        owned: bool = False,
        tidied: Tidied | None = None,
    ) -> None:
        """`root`: an absolute path. `boundary`: the folder that writes may not leave (default: `root`). `writes`,
        `tidied`: shared with the store that this is a folder of. `owned`: all folders below the root belong to the
        writer, as in the output of a job, so that empty ones may be removed; otherwise only those that this store has
        created."""
        self._root = root
        self._writes = writes or Writes()
        self._boundary = boundary or root
        self._owned = owned
        self._made: set[str] = set()
        """Folders that this store has created."""
        self._folders = Mutex()
        """Guards folders together with `_made`."""
        self._tidied = Tidied() if tidied is None else tidied

    @classmethod
    def from_url(cls, url: str) -> DirectoryStore:
        """`file:///dir`. Raises `ConfigError`."""
        path = url.removeprefix("file://").partition("?")[0]
        if not path.startswith("/"):
            raise ConfigError(
                f"store URL {shown_address(url)!r}: write file:// and an absolute path, as in file:///data/videos"
            )
        return cls("/" + path.strip("/"))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read part of a file, without touching the rest."""
        with self.open(key) as file, self._errors(key):
            left = max(0, os.fstat(file.fileno()).st_size - start)
            file.seek(start)
            return file.read(left if length is None else min(left, length))

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write a file atomically; it is durable when this returns."""
        return self._write(key, lambda file: file.write(data), if_absent)

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Copy a file into the store."""
        with self._errors(path), open(path, "rb") as source:
            return self._write(key, lambda file: shutil.copyfileobj(source, file, 2**20), if_absent=False)

    def head(self, key: str) -> ObjectInfo:
        """Return size and modification time."""
        with self._errors(key):
            return self._info(key, os.stat(self._path(key)))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the folders that can contain such keys."""
        folder, slash, stem = prefix.rpartition("/")
        if not folder or is_key(folder):
            yield from self._walk(folder + slash, stem, ())

    def delete(self, key: str) -> None:
        """Remove a file, and the folders around it that become empty, but not the root or folders of others."""
        with self._errors(key), suppress(FileNotFoundError, NotADirectoryError):
            path = self._writable_path(key)
            os.unlink(path)
            self._remove_empty(os.path.dirname(path))

    def open(self, key: str) -> BinaryIO:
        """Open the file."""
        with self._errors(key):
            # Non-blocking: a named pipe among the videos would block a reader forever.
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NONBLOCK)
            try:
                self._info(key, os.fstat(descriptor))
            except NotFound:
                os.close(descriptor)
                raise
            return os.fdopen(descriptor, "rb")  # for a folder, this would raise and leave the descriptor open

    def local_path(self, key: str) -> str | None:
        """Return the file's path, if the file exists."""
        path = self._path(key)
        return path if os.path.isfile(path) else None

    def unwritable(self) -> str:
        """Return why nothing can be written: a file is in the way, permission is missing, it is a kernel file system,
        or a link leads out of the boundary."""
        if leads_out := self._leads_out(self._root):
            return leads_out
        folder = self._root
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            return f"{folder} is a file; give a folder"
        if not os.access(folder, os.W_OK | os.X_OK):
            return f"{folder} cannot be written to; give this process the right, or use another folder"
        if _device(folder) in (_device("/proc"), _device("/sys")):
            return f"{folder} belongs to the kernel, and no folder can be made in it; use another folder"
        return ""

    def troubles(self) -> Troubles:
        """Report if the disk is full."""
        return self._writes.troubles()

    def uri(self, key: str) -> str:
        """Return `file:///dir/key`."""
        return f"file://{self._path(key)}"

    def below(self, folder: str) -> DirectoryStore:
        """Return the store for a folder in this one, with its own writer. A symbolic link on the way does not extend
        the boundary for writes."""
        return DirectoryStore(self._path(folder), self._boundary, self._writes, owned=True, tidied=self._tidied)

    def _path(self, key: str) -> str:
        return os.path.join(self._root, checked(key))

    def _writable_path(self, key: str) -> str:
        """Return the path of a key whose folder is within the boundary, with links resolved."""
        path = self._path(key)
        if leads_out := self._leads_out(os.path.dirname(path), path):
            raise NotFound(leads_out)
        return path

    def _leads_out(self, folder: str, named: str = "") -> str:
        """Return a message if links lead from a folder, or from what is `named`, out of the boundary; else ""."""
        root = os.path.realpath(self._boundary)
        if os.path.commonpath([root, os.path.realpath(folder)]) == root:
            return ""
        return f"{named or folder} leads out of {self._boundary} through a symbolic link; nothing is written there"

    def _write(self, key: str, fill: Callable[[BinaryIO], object], if_absent: bool) -> ObjectInfo:
        with self._writes.one(small=False), self._errors(key):
            path = self._writable_path(key)
            folder = os.path.dirname(path)
            temporary = os.path.join(folder, uuid.uuid4().hex.join(_TEMPORARY))
            try:
                begun = self._begun(key, folder, temporary)
                try:
                    with begun as file:
                        with suppress(OSError):  # failing to remove leftovers must not fail the write
                            self._tidy(folder, os.fstat(file.fileno()).st_mtime)
                        fill(file)
                        file.flush()
                        os.fsync(file.fileno())
                        info = self._info(key, os.fstat(file.fileno()))
                    _publish(temporary, path, if_absent)
                finally:
                    with suppress(FileNotFoundError, NotADirectoryError):
                        os.unlink(temporary)
            except BaseException:
                self._remove_empty(folder)
                raise
            with suppress(FileNotFoundError):  # deleted in the meantime, together with its folder
                _flush_folder(folder)
            return info

    def _begun(self, key: str, folder: str, temporary: str) -> BinaryIO:
        """Create a file in a folder, after creating the folder. Retries, since deleting the last file of a folder
        removes it."""
        made = False
        for _ in range(_BEGINNINGS):
            with suppress(FileNotFoundError):
                try:
                    if not os.path.isdir(folder):
                        with self._folders.held:
                            _make_durable_folder(folder, self._made)
                        if self._owned:
                            self._tidy_beside(folder, os.stat(folder).st_mtime)
                except (FileExistsError, NotADirectoryError) as error:
                    raise Conflict(f"{key!r} cannot be written: part of its path is an object") from error
                made = True
                return open(temporary, "xb")
        if not made:  # such as in /proc
            raise ConfigError(f"the folder {folder} cannot be made; use another place", code="refused")
        raise Unavailable(f"{folder} is removed each time it is made; see which other program deletes it")

    def _tidy(self, folder: str, now_s: float) -> bool:
        """Remove the leftovers of crashed writers in a folder, if a search is due. Returns whether there were any.

        `now_s`: by the clock of the file system, which may be on another machine.
        """
        return self._tidied.is_due(folder) and self._remove_stale(folder, now_s)

    @staticmethod
    def _remove_stale(folder: str, now_s: float) -> bool:
        found = False
        for entry in os.scandir(folder):
            if is_temporary(entry.name):
                with suppress(FileNotFoundError):
                    if now_s - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                        os.unlink(entry.path)
                        found = True
        return found

    def _tidy_beside(self, made: str, now_s: float) -> None:
        """Remove the leftovers of crashed writers in the siblings of a new folder, and siblings that contained nothing
        else."""
        around = os.path.dirname(made)
        if not self._tidied.is_due(f"{around}/*"):
            return
        for entry in os.scandir(around):
            with suppress(OSError):  # failing to remove leftovers must not fail the write
                if entry.is_dir(follow_symlinks=False) and self._remove_stale(entry.path, now_s):
                    self._remove_empty(entry.path)

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder and its parents, as far as they are empty and belong to this store."""
        # it could not be created, or others have removed it
        while folder != self._root and not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        with self._folders.held, suppress(OSError):  # not empty, or a link
            while folder != self._root and (self._owned or folder in self._made):
                os.rmdir(folder)
                self._made.discard(folder)
                self._tidied.forget(folder)
                folder = os.path.dirname(folder)

    def _walk(self, base: str, stem: str, above: tuple[str, ...]) -> Iterator[ObjectInfo]:
        """Yield the objects below `base`, which is empty or ends with `/`. `above`: the real folders on the way to it,
        to detect circular links."""
        with self._errors(base):
            try:
                entries = (e for e in os.scandir(os.path.join(self._root, base)) if e.name.startswith(stem))
                # A folder sorts like its keys: "a.b" comes before "a/b".
                names = sorted(os.fsencode(entry.name + "/" * _is_folder(entry)) for entry in entries)
            except (FileNotFoundError, NotADirectoryError):
                return
        way = *above, os.path.realpath(os.path.join(self._root, base))
        for name in map(os.fsdecode, names):
            key = base + name.removesuffix("/")
            if not is_key(key) or is_temporary(name.removesuffix("/")):
                continue
            if name.endswith("/"):
                if os.path.realpath(os.path.join(self._root, key)) not in way:
                    yield from self._walk(key + "/", "", way)
            else:
                with suppress(NotFound):  # a broken link, a pipe, or deleted in the meantime
                    yield self.head(key)

    def _info(self, key: str, status: os.stat_result) -> ObjectInfo:
        if not stat.S_ISREG(status.st_mode):
            raise NotFound(f"{self._path(key)} is not a file")
        return ObjectInfo(key, status.st_size, f"{status.st_size}-{status.st_mtime_ns}")

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Convert the operating system's errors into ESSP's."""
        where = os.path.join(self._root, name)
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFound(f"there is no file {where}") from None  # the message is complete
        except OSError as error:
            if error.errno in _NO_SUCH_NAME:
                raise NotFound(f"there cannot be a file {where}: {error.strerror}") from error
            if error.errno in _NOT_ALLOWED:
                raise ConfigError(
                    f"{where}: {error.strerror}; give this process the right, or use another folder", code="refused"
                ) from error
            if error.errno in _NO_ROOM:
                raise StorageFull(f"{where}: {error.strerror}") from error
            raise Unavailable(f"{where}: {error.strerror}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or through an unreadable folder
        return False


def is_temporary(name: str) -> bool:
    """Whether a file with this name is being written, or was when its writer was killed."""
    return _A_TEMPORARY.fullmatch(name) is not None


def _publish(temporary: str, path: str, if_absent: bool) -> None:
    if if_absent:
        try:
            os.link(temporary, path)
        except FileExistsError as error:
            if not os.path.samefile(temporary, path):  # NFS repeats a request whose answer was lost
                raise Conflict(f"{path} exists already") from error
        return
    try:
        os.replace(temporary, path)
    except IsADirectoryError as error:
        raise Conflict(f"{path} is a folder") from error


def _make_durable_folder(folder: str, made: set[str]) -> None:
    """Create a folder and its parents, so that each survives a crash. `made` receives those that did not exist, even if
    a deeper one cannot be created."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    _make_durable_folder(parent, made)
    with suppress(FileExistsError):
        os.mkdir(folder)
        made.add(folder)
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)  # a single stat, since others may remove and recreate it
    except FileNotFoundError:
        if not os.path.islink(folder):
            raise
        is_folder = False  # a broken link
    if not is_folder:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    _flush_folder(parent)


def _flush_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _device(folder: str) -> int | None:
    """Return the device of a folder; None if it does not exist. Checking permissions would tell root nothing."""
    try:
        return os.stat(folder).st_dev
    except OSError:
        return None

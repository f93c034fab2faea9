"""Files in a tar or zip archive, in any object store."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from essp_common.errors import BadFrames, ConfigError
from essp_common.objects.documents import tar_members
from essp_common.objects.port import ObjectStore

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError),
    RuntimeError,  # zipfile: encrypted, or an unknown compression method
    OSError,  # zipfile: an offset before the beginning of the file
)
MOST_BYTES = 2**30
"""The largest unpacked size of one file; anything larger is not an image."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Used from one thread. Fastest if files are read in order."""

    sizes: dict[str, int]
    """Name of each file -> its unpacked size in bytes, in the order of the archive."""
    unpack: Callable[[str], bytes]

    @property
    def names(self) -> list[str]:
        """The names of its files, in order."""
        return list(self.sizes)

    def read(self, name: str) -> bytes:
        """The contents of one file. Raises `BadFrames` if it is damaged or larger than `MOST_BYTES`."""
        if self.sizes[name] > MOST_BYTES:
            raise BadFrames(f"it would unpack to {self.sizes[name]} bytes")
        with _errors(BadFrames, "it cannot be unpacked"):
            return self.unpack(name)


@contextmanager
def open_archive(store: ObjectStore, key: str, is_zip: bool) -> Iterator[Archive]:
    """The archive at `key`. Raises `ConfigError` if it is damaged."""
    with store.open(key) as file, ExitStack() as opened:
        with _errors(ConfigError, f"{store.uri(key)} is not an archive that can be read"):
            if is_zip:
                archive = _zip(opened.enter_context(zipfile.ZipFile(file)))
            else:
                archive = _tar(opened.enter_context(tarfile.open(fileobj=file)))
        yield archive


def _zip(opened: zipfile.ZipFile) -> Archive:
    files = (info for info in opened.infolist() if not info.is_dir())
    return Archive({info.filename: info.file_size for info in files}, opened.read)


def _tar(opened: tarfile.TarFile) -> Archive:
    members = {member.name: member for member in tar_members(opened) if member.isfile()}

    def unpack(name: str) -> bytes:
        file = opened.extractfile(members[name])
        return b"" if file is None else file.read()

    return Archive({name: member.size for name, member in members.items()}, unpack)


@contextmanager
def _errors(kind: type[BadFrames] | type[ConfigError], what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise kind(f"{what}: {error}") from error

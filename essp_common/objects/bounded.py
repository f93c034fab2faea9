"""A directory with a size limit."""

from __future__ import annotations

import os
from contextlib import suppress

from essp_common.errors import StorageFull
from essp_common.objects.directory import DirectoryStore, is_temporary
from essp_common.objects.port import ObjectInfo
from essp_common.quantities import size


class BoundedDirectory(DirectoryStore):
    """A `DirectoryStore` in which a write raises `StorageFull` if the total size would then exceed the limit.

    For one writer: two concurrent writers would each count on room that the other takes.
    """

    def __init__(self, root: str, limit_bytes: int) -> None:
        """`root`: an absolute path."""
        super().__init__(root, owned=True)
        self._top = root
        self._limit_bytes = limit_bytes

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write a file atomically; it is durable when this returns."""
        self._check_room(key, len(data))
        return super().put(key, data, if_absent=if_absent)

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Copy a file into the store."""
        self._check_room(key, os.stat(path).st_size)
        return super().put_file(key, path)

    def remove_unfinished(self) -> None:
        """Remove what killed writers have left, as far as the disk allows: no one else writes here now."""
        for folder, _, files in os.walk(self._top, topdown=False):
            for name in filter(is_temporary, files):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
            if folder != self._top:
                with suppress(OSError):  # not empty
                    os.rmdir(folder)

    def _check_room(self, key: str, wanted_bytes: int) -> None:
        held_bytes = sum(info.size_bytes for info in self.list() if info.key != key)
        if held_bytes + wanted_bytes > self._limit_bytes:
            raise StorageFull(
                f"{self.uri(key)}: {size(held_bytes)} are here, and with {size(wanted_bytes)} more it would be over "
                f"{size(self._limit_bytes)}"
            )

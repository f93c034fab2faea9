"""A directory that holds no more than so many bytes."""

from __future__ import annotations

import os

from essp_common.errors import StorageFull
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.quantities import size


class BoundedDirectory(DirectoryStore):
    """A `DirectoryStore` in which a write raises `StorageFull` if all objects would be larger than the limit then.

    For one writer: of two that write at the same time, each sees room that the other one takes.
    """

    def __init__(self, root: str, limit_bytes: int) -> None:
        """`root`: an absolute path."""
        super().__init__(root)
        self._limit_bytes = limit_bytes

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write a file whole, durable when this returns."""
        self._check_room(key, len(data))
        return super().put(key, data, if_absent=if_absent)

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Copy a file into the store."""
        self._check_room(key, os.stat(path).st_size)
        return super().put_file(key, path)

    def _check_room(self, key: str, wanted_bytes: int) -> None:
        held_bytes = sum(info.size_bytes for info in self.list() if info.key != key)
        if held_bytes + wanted_bytes > self._limit_bytes:
            raise StorageFull(
                f"{self.uri(key)}: {size(held_bytes)} are here, and with {size(wanted_bytes)} more it would be over "
                f"{size(self._limit_bytes)}"
            )

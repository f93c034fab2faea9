"""What read-only files of a known size have in common: seeking, which reads nothing."""

from __future__ import annotations

import io
import os


class SeekableFile(io.RawIOBase):
    """A file of `size_bytes`. A subclass defines `readinto`, which reads from `_position` on and moves it."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read. Raises `ValueError` for a position before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

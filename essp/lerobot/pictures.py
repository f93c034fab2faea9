"""Cameras whose frames are pictures in the tables: columns of `{bytes, path}`.

A table is read by groups of rows, and those that were read last stay in memory, `_KEPT_BYTES` of them in a process.
The files that were read last stay open, `_OPEN_FILES` of them.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp.lerobot.place import store_of
from essp_common.errors import BadVideo, ConfigError, NotFound
from essp_common.objects import tables
from essp_common.runtime.forks import Mutex, follow

_KEPT_BYTES = 1 << 28
_OPEN_FILES = 64
"""In a process: in layouts v2.0 and v2.1, each episode has a file."""
_WIDE = frozenset({"I;16", "I;16L", "I;16B", "I", "F"})
"""Pillow's modes of pictures with more than 8 bits."""


class Pictures:
    """The pictures in the tables of a data set, in this process."""

    def __init__(self, root: str, files: Sequence[str], columns: Sequence[str]) -> None:
        """`root`: the URI of the folder."""
        self._root, self._store, self._files, self._columns = root, store_of(root), files, columns
        self._mutex = Mutex()
        follow(self)
        self.forked()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pictures, (self._root, self._files, self._columns)

    def forked(self) -> None:
        """Forget the parent's open files."""
        self._open: OrderedDict[int, tuple[Any, NDArray[np.int64]]] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()

    def read(self, column: str, file: int, row: int) -> NDArray[Any]:
        """`(3, H, W)` uint8 RGB, or `(H, W)` of 16 bits or float: the picture of a row. Raises `BadVideo`."""
        with self._mutex.held:
            cell = self._cell(column, file, row)
        where = f"{self._store.uri(self._files[file])}: row {row} of {column}"
        if not isinstance(cell, Mapping) or not (cell.get("bytes") or cell.get("path")):
            raise BadVideo(f"{where} has no picture", "empty")
        try:
            data = cell.get("bytes") or self._store.get(str(cell["path"]))
        except NotFound as error:
            raise BadVideo(f"{where}: {cell['path']} does not exist", "vanished") from error
        return decoded(data, where)

    def _cell(self, column: str, file: int, row: int) -> Any:
        opened, ends = self._file(file)
        group = int(np.searchsorted(ends, row, side="right"))
        first = int(ends[group - 1]) if group else 0
        if (file, group) not in self._groups:
            self._groups[file, group] = opened.read_row_group(group, columns=self._columns, use_threads=False)
            while len(self._groups) > 1 and sum(each.nbytes for each in self._groups.values()) > _KEPT_BYTES:
                self._groups.popitem(last=False)
        self._groups.move_to_end((file, group))
        return self._groups[file, group].column(column)[row - first].as_py()

    def _file(self, file: int) -> tuple[Any, NDArray[np.int64]]:
        """The open file, and the rows up to the end of each of its groups."""
        if file not in self._open:
            opened = self._opened(self._files[file])
            groups = range(opened.metadata.num_row_groups)
            self._open[file] = opened, np.cumsum([opened.metadata.row_group(group).num_rows for group in groups])
            if len(self._open) > _OPEN_FILES:
                _, (oldest, _) = self._open.popitem(last=False)
                oldest.close(force=True)
        self._open.move_to_end(file)
        return self._open[file]

    def _opened(self, key: str) -> Any:
        source: Any = self._store.local_path(key) or pa.PythonFile(self._store.open(key), mode="r")
        try:
            return tables.opened(source)
        except tables.UNREADABLE as error:
            if not isinstance(source, str):
                source.close()
            raise ConfigError(f"{self._store.uri(key)} cannot be read: {error}", code="unreadable") from error


def decoded(data: bytes, where: str) -> NDArray[Any]:
    """`(3, H, W)` uint8 RGB, or `(H, W)` for a picture with more than 8 bits. Raises `BadVideo`."""
    from PIL import Image  # comes with torchvision

    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.mode in _WIDE:
                return np.array(picture)
            return np.ascontiguousarray(np.asarray(picture.convert("RGB")).transpose(2, 0, 1))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadVideo(f"{where} is not a picture ({error})", "not_video") from error

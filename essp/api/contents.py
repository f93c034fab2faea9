"""Videos given as their contents, in bytes or in an open binary file, instead of by a path or a URI.

In this process they are read as they are. For functions that read videos in other processes, they are written to a
temporary folder first.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeAlias

from essp_common.errors import ConfigError
from essp_common.quantities import size as in_words
from essp_common.validation import shown

Contents: TypeAlias = bytes | bytearray | memoryview | BinaryIO
"""The bytes of a video file, or an open binary file."""

_MEMORY = (bytes, bytearray, memoryview)
_MOST_UNSEEKABLE_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 20
_LONGEST_SUFFIX = 8
_HEAD_BYTES = 16
_PICTURES = ((0, b"\xff\xd8\xff", ".jpg"), (0, b"\x89PNG", ".png"), (8, b"WEBP", ".webp"))


def is_contents(value: object) -> bool:
    """Whether a value is the contents of a file, and not its name."""
    return isinstance(value, _MEMORY) or callable(getattr(value, "read", None))


def given_videos(name: str, value: Any, *kinds: type) -> list[Any]:
    """An argument that is one video, or an iterable of videos, as a list. `kinds`: of videos, in addition to paths and
    contents. Its entries are not checked. Raises `ConfigError`."""
    if is_contents(value) or isinstance(value, (str, os.PathLike, *kinds)):
        return [value]
    if not isinstance(value, Iterable):
        raise ConfigError(
            f"must be a path, a URI, bytes, an open binary file, or a list of these, got {shown(value)}",
            field=name,
            code="type",
        )
    return list(value)


def name_of_contents(value: Any, number: int = 0) -> str:
    """What results and errors call a video: the name of the open file, or `bytes N` for the N-th video given, from
    0."""
    name = None if isinstance(value, _MEMORY) else getattr(value, "name", None)
    return name if isinstance(name, str) and name else f"bytes {number}"


def opened_contents(name: str, value: Any) -> BinaryIO:
    """The contents as a seekable binary file, at its beginning. An open file that is seekable is used itself.

    Raises `ConfigError` for a file that is closed or open as text, and for one that cannot be read twice and is too
    large to keep.
    """
    if isinstance(value, _MEMORY):
        return io.BytesIO(value)
    if isinstance(value, io.TextIOBase):
        raise ConfigError("is open as text; open it in binary mode ('rb')", field=name, code="type")
    try:
        seekable = getattr(value, "seekable", None)
        if callable(seekable) and seekable():
            value.seek(0)
            file: BinaryIO = value
            return file
        held = io.BytesIO()
        while data := value.read(_CHUNK_BYTES):
            held.write(data)
            if held.tell() > _MOST_UNSEEKABLE_BYTES:
                raise ConfigError(
                    f"is not seekable and has more than {in_words(_MOST_UNSEEKABLE_BYTES)}; save it to a file first",
                    field=name,
                    code="range",
                )
    except (TypeError, ValueError) as error:  # text, or closed
        raise ConfigError(
            f"{shown(value)} cannot be read as a binary file: {error}", field=name, code="type"
        ) from error
    held.seek(0)
    return held


def written_to(folder: str, name: str, value: Any, number: int) -> Path:
    """Write the contents to a file of its own in a folder. Raises `ConfigError` as `opened_contents` does.

    The file has the suffix of the open file's name, or the suffix of a picture if it begins like one.
    """
    source = opened_contents(name, value)
    head = source.read(_HEAD_BYTES)
    source.seek(0)
    known = PurePath(name_of_contents(value, number)).suffix[:_LONGEST_SUFFIX]
    suffix = known or next((suffix for at, mark, suffix in _PICTURES if head[at : at + len(mark)] == mark), "")
    path = Path(folder) / f"{number:06d}{suffix}"
    with path.open("wb") as target:
        shutil.copyfileobj(source, target, _CHUNK_BYTES)
    return path

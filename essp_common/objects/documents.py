"""Reads files that other programs wrote, and refuses damage that Python's own readers silently ignore.

CSV    an unclosed quote, which swallows the lines after it; a duplicate column
JSON   a duplicate name in an object, whose first value would be lost; unlimited nesting
tar    a damaged header or a missing end, after which all members are lost; circular sizes
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from essp_common.errors import ConfigError

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


def text_of(data: bytes, errors: str = "strict") -> str:
    """Decode UTF-8, or UTF-16 with the byte order mark that Windows writes. Raises `UnicodeDecodeError`."""
    return data.decode("utf-16" if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig", errors)


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text with their ends, of any system, and without a copy of the text, which `io.StringIO` makes in
    four bytes a character."""
    return (line[0] for line in _LINE.finditer(text))


class CsvRow(NamedTuple):
    """One row of a CSV file."""

    line: int
    """The line in the file at which the row ends."""
    values: dict[str, str]
    """By column in lower case, with blanks stripped; the missing values of a short row are empty."""
    problem: str
    """What is wrong with the row as such; empty if nothing is."""
    given: Mapping[str, Any] | None = None
    """The values as they were given, by column in lower case, where a format has more than texts."""


_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
"""Excel writes semicolons in locales with decimal commas."""


def delimiter_of(uri: str, head: str) -> str:
    """Return the delimiter of a CSV file: the one that splits its header into the most columns."""
    usual = "\t" if uri.lower().endswith(".tsv") else ","

    def fields(delimiter: str) -> int:
        return len(next(csv.reader([head], delimiter=delimiter, skipinitialspace=True), []))

    return max((usual, *_DELIMITERS), key=fields)


class CsvFile:
    """A CSV file whose first non-empty line names its columns. Iterating yields the non-empty rows."""

    def __init__(self, uri: str, text: str) -> None:
        """Raises `ConfigError` for an invalid file, as iterating does."""
        self._uri = uri
        head = next((line for line in lines_of(text) if line.strip()), "").rstrip("\r\n")
        self._delimiter = delimiter_of(uri, head)
        self._reader = csv.reader(lines_of(text), delimiter=self._delimiter, strict=True, skipinitialspace=True)
        named = (names for fields in self._lines() if any(names := [field.strip() for field in fields]))
        self.columns = next(named, [])
        """As written in the file."""
        self._names = [name.lower() for name in self.columns]
        twice = next((name for place, name in enumerate(self._names) if name and name in self._names[:place]), None)
        if twice is not None:
            raise ConfigError(f"{uri}: column {twice!r} is there twice; keep one of them", code="conflict")

    def __iter__(self) -> Iterator[CsvRow]:
        count = len(self._names)
        for fields in self._lines():
            texts = [field.strip() for field in fields]
            if any(texts):
                values = dict(zip(self._names, [*texts[:count], *[""] * (count - len(texts))], strict=True))
                yield CsvRow(self._reader.line_num, values, self._too_long(fields) if any(texts[count:]) else "")

    def _lines(self) -> Iterator[list[str]]:
        try:
            yield from self._reader
        except csv.Error as error:
            raise ConfigError(
                f"{self._uri} is not a CSV file: line {self._reader.line_num}: {error}; a field that begins with a "
                "quote "
                "ends with one, and a quote within it is written twice",
                code="unreadable",
            ) from error

    def _too_long(self, fields: list[str]) -> str:
        return (
            f"line {self._reader.line_num} has {len(fields)} fields, and there are {len(self._names)} columns; put "
            f"quotes around a text with a {_DELIMITERS[self._delimiter]} in it"
        )


def read_json(text: str | bytes, made: Callable[[dict[str, Any]], Any] = lambda found: found) -> Any:
    """Parse JSON. `made`: converts each object. Raises `ValueError` for invalid text."""

    def whole(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice in one object")
        return made(found)

    try:
        return json.loads(text, object_pairs_hook=whole)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def tar_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive that is open for reading, in order.

    Raises `tarfile.ReadError` for damage anywhere, and if another archive follows the end.
    """
    behind = -1
    try:
        while (member := archive.next()) is not None:
            if member.offset <= behind or member.size < 0:
                raise tarfile.ReadError(f"the size of {member.name!r} cannot be")
            behind = member.offset
            yield member
        file: Any = archive.fileobj
        file.seek(archive.offset)
        end = file.read(tarfile.BLOCKSIZE)
        behind_end = file.read(tarfile.RECORDSIZE)
    except (ValueError, OverflowError) as error:  # an impossible size
        raise tarfile.ReadError(str(error)) from error
    if end != tarfile.NUL * tarfile.BLOCKSIZE:
        what = "it is damaged there" if end else "it has no mark of its end, so it was cut, or is not finished"
        raise tarfile.ReadError(f"byte {archive.offset}: {what}")
    if behind_end.strip(tarfile.NUL):
        raise tarfile.ReadError(
            f"byte {archive.offset}: it ends there, and something follows; join archives with tar -A"
        )

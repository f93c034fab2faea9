"""The rows of a user's own list, in any of its formats: CSV, JSON lines (`.jsonl`), and Parquet.

All formats give texts by column, as a CSV file does. JSON lines and Parquet also give the values as they are stored
(`CsvRow.given`), for the columns that are kept unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any, BinaryIO, Protocol

from essp.catalog.foreign_lists import refuse_lists_of_labels
from essp.catalog.hugging_face_schema import class_names, holds_bytes
from essp_common.errors import ConfigError
from essp_common.objects import tables
from essp_common.objects.documents import CsvFile, CsvRow, lines_of, read_json, text_of
from essp_common.wiring import Stores

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet", ".pq")
_BETWEEN = "|"
_AT_ONCE = 1024
"""Rows of a table that are Python objects at the same time."""


class Rows(Protocol):
    """A list, opened."""

    @property
    def columns(self) -> Sequence[str]:
        """As written in the file."""

    def __iter__(self) -> Iterator[CsvRow]: ...


def open_list(uri: str, stores: Stores) -> Rows:
    """Open a list in the format that its name says. Raises `NotFound`, and `ConfigError` for one that is damaged."""
    store, key = stores.resolve(uri)
    name = uri.lower()
    if name.endswith(PARQUET):
        with closing(store.open(key)) as file:
            return _ParquetRows(uri, file)
    try:
        text = text_of(store.get(key))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{uri} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if name.endswith(JSON_LINES):
        return _JsonLines(uri, text)
    refuse_lists_of_labels(uri, text)
    return CsvFile(uri, text)


class _JsonLines:
    """A JSON object a line."""

    def __init__(self, uri: str, text: str) -> None:
        """Raises `ConfigError` for a line that is not a JSON object."""
        self._uri, self._text = uri, text
        self.columns = list(dict.fromkeys(name for _, row in self._rows() for name in row))
        _check_distinct(uri, self.columns)

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(lines_of(self._text), 1):
            if not line.strip():
                continue
            try:
                found = read_json(line)
            except ValueError as error:
                raise ConfigError(f"{self._uri}: line {number} is not JSON: {error}", code="unreadable") from error
            if not isinstance(found, dict):
                raise ConfigError(f'{self._uri}: line {number} is not a JSON object, such as {{"file_name": "a.mp4"}}')
            yield number, found

    def __iter__(self) -> Iterator[CsvRow]:
        names = [name.lower() for name in self.columns]
        for line, row in self._rows():
            given = {name.lower(): plain_value(value) for name, value in row.items()}
            yield CsvRow(line, {name: _text(given.get(name)) for name in names}, "", given)


class _ParquetRows:
    """A table in a Parquet file. Class labels of Hugging Face have their names instead of numbers."""

    def __init__(self, uri: str, file: BinaryIO) -> None:
        """Raises `ConfigError` if it is not Parquet."""
        self._uri = uri
        try:
            with tables.opened(file, ()) as opened:
                schema = opened.schema_arrow
                self.columns: list[str] = list(schema.names)
                _check_distinct(uri, self.columns)
                texts = [field.name for field in schema if not holds_bytes(field.type)]
                self._rows = tables.read(opened, texts)
        except tables.UNREADABLE as error:
            raise ConfigError(f"{uri} cannot be read as Parquet: {tables.reason(error)}", code="unreadable") from error
        self._names = class_names(schema)

    def __iter__(self) -> Iterator[CsvRow]:
        batches = self._rows.to_batches(_AT_ONCE)
        for number, row in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
            given = {name.lower(): plain_value(named(value, self._names.get(name))) for name, value in row.items()}
            yield CsvRow(number, _Texts(self._uri, {name: _text(value) for name, value in given.items()}), "", given)


class _Texts(dict[str, str]):
    """The values of a row of a table as texts, by column. Columns of bytes are not read; asking for one raises
    `ConfigError`."""

    def __init__(self, uri: str, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self._uri = uri

    def __missing__(self, column: str) -> str:
        raise ConfigError(f"{self._uri}: column {column!r} has bytes; write it as text (UTF-8)", code="type")


def _check_distinct(uri: str, columns: Sequence[str]) -> None:
    lower = [name.lower() for name in columns]
    if twice := next((name for place, name in enumerate(lower) if name in lower[:place]), None):
        raise ConfigError(f"{uri}: column {twice!r} is there twice; keep one of them", code="conflict")


def named(value: Any, names: Sequence[str] | None) -> Any:
    """A class label by its name, if its column has names; also in lists."""
    if names is None:
        return value
    if isinstance(value, list):
        return [named(each, names) for each in value]
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names)
    return names[value] if known else (None if value == -1 else value)  # -1: no label, as in test sets of the Hub


def plain_value(value: Any) -> Any:
    """A value as JSON can hold it: missing numbers as None, dates and decimals as text, no bytes."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, date | datetime | time | Decimal):
        return str(value)
    return value if isinstance(value, str | int | bool) else None


def _text(value: Any) -> str:
    """A value as a CSV file would have it."""
    if value is None or isinstance(value, Mapping):
        return ""
    if isinstance(value, list):
        return _BETWEEN.join(map(_text, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()

"""The columns of a catalog in memory: a million videos in about two hundred megabytes, without an object for each.

    Numbers   a NumPy array of the smallest type that fits
    Texts     strings end to end in one buffer
    Blobs     the same for bytes
    Shared    bytes that are equal in consecutive rows, such as segments of one file: each value is stored once
    Prefixed  strings that consist of a common prefix and another column with distinct values: URIs below one source
    Words     strings with many repetitions (classes, codecs): a small number for each, and the words
    Lists     lists of integers end to end, such as keyframes

A column is built from pieces while a file is read, and never exists twice in memory. Nothing is rounded. Missing values
are recorded (`Made.empty`), and stored as 0 or as empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]
_WIDTHS = (np.int8, np.int16, np.int32)
B = TypeVar("B", bound="Blobs")


class Blobs:
    """Byte strings, end to end."""

    kind = pa.binary()

    def __init__(self, data: bytes | bytearray | memoryview, edges: NDArray[np.int64] | NDArray[np.int32]) -> None:
        """`edges`: the start of each string, and the end of the last one."""
        self._data = memoryview(data)
        self._edges = edges

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self._data), self._edges)

    def encoded(self, place: int) -> bytes:
        """The bytes of one value."""
        return bytes(self._data[self._edges[place] : self._edges[place + 1]])

    def value(self, place: int) -> Any:
        """One value, in the form of `VideoRow`."""
        return self.encoded(place)

    def each(self, places: NDArray[Any]) -> Iterator[memoryview | bytes]:
        """The values at these places, one after the other."""
        for begin, end in zip(self._edges[places].tolist(), self._edges[1:][places].tolist(), strict=True):
            yield self._data[begin:end]

    def values(self, places: NDArray[Any]) -> list[Any]:
        """The values at these places, in the form of `VideoRow`."""
        return [bytes(found) for found in self.each(places)]

    @property
    def lengths(self) -> NDArray[Any]:
        """The length of each in bytes."""
        return np.diff(self._edges)

    def alike(self, places: NDArray[Any]) -> NDArray[Any]:
        """For each of these places, a number below their count, equal where the texts are equal."""
        codes: NDArray[Any] = self.arrow().take(pa.array(places)).dictionary_encode().indices.to_numpy(False)
        return codes

    def taken(self, places: NDArray[Any]) -> Blobs:
        """The values at these places, as a column."""
        return _end_to_end([self.arrow().take(pa.array(places))], type(self))

    def arrow(self) -> Any:
        """A pyarrow array that shares the memory."""
        wide = self._edges.dtype == np.int64
        kind = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}[self.kind] if wide else self.kind
        return pa.Array.from_buffers(kind, len(self), [None, pa.py_buffer(self._edges), pa.py_buffer(self._data)])


class Texts(Blobs):
    """Strings, end to end."""

    kind = pa.string()

    def value(self, place: int) -> str:
        return str(self._data[self._edges[place] : self._edges[place + 1]], "utf-8")

    def values(self, places: NDArray[Any]) -> list[str]:
        return [str(found, "utf-8") for found in self.each(places)]

    def begin(self, text: str) -> bool:
        """Whether any of them begins with this text."""
        return bool(pc.any(pc.starts_with(self.arrow(), text), min_count=0).as_py())


class Prefixed(Texts):
    """Strings with a common prefix, followed by the values of another column, which are all distinct."""

    def __init__(self, prefix: bytes, rest: Texts) -> None:
        super().__init__(rest._data, rest._edges)
        self._prefix = prefix
        self._start = prefix.decode()

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefixed, (self._prefix, Texts(bytes(self._data), self._edges))

    def encoded(self, place: int) -> bytes:
        return self._prefix + super().encoded(place)

    def each(self, places: NDArray[Any]) -> Iterator[memoryview | bytes]:
        return (self._prefix + found for found in super().each(places))

    def value(self, place: int) -> str:
        return self._start + super().value(place)

    def begin(self, text: str) -> bool:
        if self._start.startswith(text):
            return len(self) > 0
        rest = Texts(self._data, self._edges)
        return text.startswith(self._start) and rest.begin(text.removeprefix(self._start))

    @property
    def lengths(self) -> NDArray[Any]:
        return super().lengths + len(self._prefix)

    def alike(self, places: NDArray[Any]) -> NDArray[Any]:
        return np.arange(len(places))  # the rest is an id, so all are distinct

    def taken(self, places: NDArray[Any]) -> Blobs:
        return _end_to_end([self.arrow().take(pa.array(places))], Texts)

    def arrow(self) -> Any:
        start, end = (pa.scalar(text, pa.large_string()) for text in (self._start, ""))
        return pc.binary_join_element_wise(start, super().arrow().cast(pa.large_string()), end)


class Shared:
    """Byte strings that are equal in consecutive rows: each value is stored once."""

    def __init__(self, places: NDArray[Any], once: Blobs) -> None:
        """`places`: the index in `once` of each row's value."""
        self.places = places
        self.once = once

    def __len__(self) -> int:
        return len(self.places)

    def value(self, place: int) -> bytes:
        """One value."""
        return self.once.encoded(int(self.places[place]))

    def values(self, places: NDArray[Any]) -> list[bytes]:
        """The values at these places; rows that share a value get the same object."""
        wanted, back = np.unique(self.places[places], return_inverse=True)
        found = self.once.values(wanted)
        return [found[place] for place in back.tolist()]

    @property
    def lengths(self) -> NDArray[Any]:
        """The length of each in bytes."""
        each: NDArray[Any] = self.once.lengths[self.places]
        return each

    def taken(self, places: NDArray[Any]) -> Shared:
        """The values at these places, as a column."""
        return Shared(self.places[places], self.once)

    def arrow(self) -> Any:
        """As a pyarrow array."""
        return self.once.arrow().take(pa.array(self.places))


class Words:
    """Strings with many repetitions."""

    def __init__(self, codes: NDArray[Any], words: Texts) -> None:
        """`codes`: the index of each in `words`, which contains each word once; -1: missing."""
        self.codes = codes
        self.words = words

    def __len__(self) -> int:
        return len(self.codes)

    def values(self, places: NDArray[Any]) -> list[str | None]:
        """The values at these places."""
        codes = self.codes[places]
        once, back = np.unique(codes, return_inverse=True)
        words = [None if code < 0 else self.words.value(code) for code in once.tolist()]
        return [words[place] for place in back.tolist()]

    def value(self, place: int) -> str | None:
        """One value."""
        code = int(self.codes[place])
        return None if code < 0 else self.words.value(code)

    def code(self, word: str) -> int:
        """The code of a word; -2 if no row has it."""
        place = pc.index(self.words.arrow(), pa.scalar(word, self.words.arrow().type)).as_py()
        return int(place) if place >= 0 else -2

    def used(self, places: NDArray[Any] | slice = slice(None)) -> NDArray[np.int64]:
        """The codes that occur at these places."""
        counts: NDArray[np.int64] = np.bincount(self.codes[places].astype(np.int32) + 1, minlength=1)
        return np.flatnonzero(counts[1:])

    @property
    def lengths(self) -> NDArray[Any]:
        """The length of each in bytes; 0 if missing."""
        each: NDArray[Any] = np.append(self.words.lengths, 0)[self.codes]
        return each

    def taken(self, places: NDArray[Any]) -> Words:
        """The values at these places, as a column."""
        return Words(self.codes[places], self.words)

    def arrow(self) -> Any:
        """As a pyarrow array of strings."""
        codes = self.codes.astype(np.int32)
        return self.words.arrow().take(pa.array(codes, mask=codes < 0))


class Lists:
    """Lists of integers, end to end."""

    def __init__(self, edges: NDArray[Any], numbers: NDArray[Any]) -> None:
        """`edges`: where each list begins in `numbers`, and the end of the last one."""
        self.edges = edges
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.edges) - 1

    def values(self, places: NDArray[Any]) -> list[tuple[int, ...]]:
        """The values at these places."""
        begins, ends = self.edges[places].tolist(), self.edges[1:][places].tolist()
        return [tuple(self.numbers[begin:end].tolist()) for begin, end in zip(begins, ends, strict=True)]

    def value(self, place: int) -> tuple[int, ...]:
        """One value."""
        return tuple(self.numbers[self.edges[place] : self.edges[place + 1]].tolist())

    def owners(self, places: NDArray[Any]) -> NDArray[np.int64]:
        """The lists that contain these places of `numbers`."""
        return np.searchsorted(self.edges, places, "right") - 1

    def taken(self, places: NDArray[Any]) -> Lists:
        """The values at these places, as a column."""
        array = self.arrow().take(pa.array(places))
        return Lists(array.offsets.to_numpy(), array.flatten().to_numpy())

    def arrow(self) -> Any:
        """As a pyarrow array."""
        kind = pa.LargeListArray if self.edges.dtype == np.int64 else pa.ListArray
        return kind.from_arrays(pa.array(self.edges), pa.array(self.numbers))


Column: TypeAlias = Numbers | Blobs | Shared | Words | Lists


class Made(NamedTuple):
    """A column, and its missing values."""

    column: Column
    empty: NDArray[np.int64]
    """The rows without a value."""
    holes: NDArray[np.int64]
    """The rows with a list that has a missing entry."""


def made_of(
    kind: pa.DataType, pieces: Iterable[Any], words: bool = False, beside: Texts | None = None, shared: bool = False
) -> Made:
    """Make a column from consecutive `pyarrow.Array`s.

    `words`: the pieces are dictionaries of strings. `beside`: distinct strings that the column's strings may end with.
    `shared`: consecutive rows may have equal bytes.
    """
    empty: list[NDArray[np.int64]] = []
    holes: list[NDArray[np.int64]] = []
    whole = _noted(pieces, empty, holes)
    column: Column
    if words:
        column = _words(list(whole))
    elif pa.types.is_list(kind):
        column = _lists(whole)
    elif pa.types.is_binary(kind):
        column = _shared(whole) if shared else _end_to_end(whole, Blobs)
    elif pa.types.is_string(kind):
        column = _behind(whole, beside) if beside is not None else _end_to_end(whole, Texts)
    else:
        column = _numbers(whole, kind)
    return Made(column, _joined(empty), _joined(holes))


def value_of(column: Column, place: int) -> Any:
    """One value, in the form of `VideoRow`."""
    return column[place].item() if isinstance(column, np.ndarray) else column.value(place)


def values_of(column: Column, places: NDArray[Any]) -> list[Any]:
    """Many values, in the form of `VideoRow`."""
    if isinstance(column, np.ndarray):
        found: list[Any] = column[places].tolist()
        return found
    return column.values(places)


def taken(column: Column, places: NDArray[Any]) -> Column:
    """The values at these places."""
    found: Column = column[places] if isinstance(column, np.ndarray) else column.taken(places)
    return found


def arrow_of(column: Column, kind: pa.DataType) -> Any:
    """A pyarrow array of this type."""
    array = pa.array(column) if isinstance(column, np.ndarray) else column.arrow()
    return array.cast(kind)


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Integers in the smallest type that holds them all."""
    if not len(values):
        return values.astype(np.int8)
    low, high = values.min(), values.max()
    for width in _WIDTHS:
        if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
            return values.astype(width)
    return values


def _noted(pieces: Iterable[Any], empty: list[NDArray[np.int64]], holes: list[NDArray[np.int64]]) -> Iterator[Any]:
    """The pieces without their missing values, whose rows are added to `empty` and `holes`."""
    begin = 0
    for piece in pieces:
        if piece.null_count:
            empty.append(begin + np.flatnonzero(piece.is_null().to_numpy(False)))
        if pa.types.is_list(piece.type):
            inner = piece.flatten()
            if inner.null_count:
                owners = pc.list_parent_indices(piece).to_numpy()
                holes.append(begin + owners[inner.is_null().to_numpy(False)])
        begin += len(piece)
        yield piece


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*parts, np.zeros(0, np.int64)])


def _numbers(pieces: Iterable[Any], kind: pa.DataType) -> Numbers:
    zero = False if pa.types.is_boolean(kind) else 0
    found = ((piece.fill_null(zero) if piece.null_count else piece).to_numpy(False) for piece in pieces)
    return _grown(map(narrow, found) if pa.types.is_integer(kind) else found, pa.array([], kind).to_numpy(False).dtype)


def _lists(pieces: Iterable[Any]) -> Lists:
    edges: list[NDArray[Any]] = [np.zeros(1, np.int32)]

    def values() -> Iterator[NDArray[Any]]:
        begin = 0
        for piece in pieces:
            counts = pc.list_value_length(piece).fill_null(0).to_numpy(False)
            edges.append(_short(begin + np.cumsum(counts, dtype=np.int64)))
            inner = piece.flatten()
            begin += len(inner)
            yield narrow((inner.fill_null(0) if inner.null_count else inner).to_numpy(False))

    numbers = _grown(values(), np.int8)
    return Lists(_short(np.concatenate(edges)), numbers)


def _grown(pieces: Iterable[NDArray[Any]], kind: Any) -> NDArray[Any]:
    """Concatenate the pieces in one array, which grows in place and is widened as needed."""
    whole = np.empty(0, kind if np.issubdtype(kind, np.inexact) or np.issubdtype(kind, np.bool_) else np.int8)
    for piece in pieces:
        if (wider := np.promote_types(whole.dtype, piece.dtype)) != whole.dtype:
            whole = whole.astype(wider)
        begin = len(whole)
        whole.resize(begin + len(piece), refcheck=False)
        whole[begin:] = piece
    return whole


def _words(pieces: list[Any]) -> Words:
    """A column from dictionary-encoded pieces."""
    if not pieces:
        return Words(np.zeros(0, np.int8), _end_to_end([], Texts))
    if len({_address(piece.dictionary) for piece in pieces}) > 1:
        pieces = pa.chunked_array(pieces).unify_dictionaries().chunks
    once = pieces[0].dictionary.dictionary_encode()  # a file may list a word twice
    places = np.append(once.indices.to_numpy(), -1)
    codes = np.concatenate([np.asarray(piece.indices.fill_null(-1).to_numpy(False), np.int32) for piece in pieces])
    return Words(narrow(places[codes]), _end_to_end([once.dictionary], Texts))


def _shared(pieces: Iterable[Any]) -> Blobs | Shared:
    """A column of bytes: `Shared` if any row equals the one before it."""
    changes: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)]

    def distinct() -> Iterator[Any]:
        last = None
        for piece in pieces:
            if not len(piece):
                continue
            full = piece.fill_null(b"") if piece.null_count else piece
            differs = pc.not_equal(full[1:], full[:-1]).to_numpy(False)
            changes.append(np.append(full[0].as_py() != last, differs))
            last = full[-1].as_py()
            yield full.filter(pa.array(changes[-1]))

    once, new = _end_to_end(distinct(), Blobs), np.concatenate(changes)
    return once if len(once) == len(new) else Shared(narrow(np.cumsum(new) - 1), once)


def _address(array: Any) -> tuple[int, int, int]:
    _, edges, _ = array.buffers()
    return (0 if edges is None else edges.address), array.offset, len(array)


def _behind(pieces: Iterator[Any], beside: Texts) -> Texts:
    """A column of strings; `Prefixed` if they are the strings of `beside` after a common prefix."""
    ends, place, prefix = beside.arrow(), 0, None
    for piece in pieces:
        prefix = _prefix(piece, beside) if prefix is None else prefix
        alike = None if prefix is None else _with(prefix, ends.slice(place, len(piece)))
        if alike is None or not alike.equals(piece):
            before = [] if prefix is None else [_with(prefix, ends.slice(0, place))]
            return _end_to_end(chain(before, [piece], pieces), Texts)
        place += len(piece)
    return Prefixed((prefix or "").encode(), beside)


def _with(prefix: str, ends: Any) -> Any:
    return pc.binary_join_element_wise(prefix, ends, "")


def _prefix(piece: Any, beside: Texts) -> str | None:
    if not len(piece) or not len(beside) or piece.null_count:
        return None
    whole, end = piece[0].as_py(), beside.value(0)
    return whole[: len(whole) - len(end)] if whole.endswith(end) else None


def _end_to_end(pieces: Iterable[Any], kind: type[B]) -> B:
    data = bytearray()  # grows in place, however large
    edges: list[NDArray[Any]] = [np.zeros(1, np.int32)]
    for piece in pieces:
        if not len(piece):
            continue
        wide = pa.types.is_large_string(piece.type) or pa.types.is_large_binary(piece.type)
        _, places, content = piece.buffers()
        begins = np.frombuffer(places, np.int64 if wide else np.int32)[piece.offset : piece.offset + len(piece) + 1]
        edges.append(_short(begins[1:].astype(np.int64) - begins[0] + len(data)))
        if content is not None:
            data += memoryview(content)[begins[0] : begins[-1]]
    return kind(data, _short(np.concatenate(edges)))


def _short(edges: NDArray[Any]) -> NDArray[Any]:
    """The edges as 32-bit integers, if they fit."""
    return edges if len(edges) and edges[-1] >= 2**31 else edges.astype(np.int32, copy=False)

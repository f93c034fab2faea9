"""Very many small objects that are read from front to back, at some tens of bytes each.

A data set may have millions of files, and a Python object for what is known of one takes half a kilobyte. Here the
objects are stored as columns, compressed, and made again while they are read.
"""

from __future__ import annotations

import heapq
import pickle
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import fields
from itertools import groupby, islice, repeat
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")
_OF_A_PART = 256
"""Few enough that memory for parts that come and go is not left in pieces."""
_SORTED_AT_ONCE = 8 * _OF_A_PART
_MERGED_AT_ONCE = 16
"""Each has one part unpacked meanwhile."""


class Spool(Collection[T]):
    """Objects of one dataclass, in the order in which they were added."""

    def __init__(self, kind: type[T], items: Iterable[T] = ()) -> None:
        self._kind = kind
        self._values = attrgetter(*(field.name for field in fields(kind)))  # type: ignore[arg-type]
        self._parts: list[bytes] = []
        self._latest: list[T] = []
        self.extend(items)

    def __len__(self) -> int:
        return len(self._parts) * _OF_A_PART + len(self._latest)

    def __iter__(self) -> Iterator[T]:
        for part in self._parts:
            yield from self._unpacked(part)
        yield from self._latest

    def __contains__(self, item: object) -> bool:
        return any(item == each for each in self)

    def add(self, item: T) -> None:
        """Add an object at the end."""
        self._latest.append(item)
        if len(self._latest) == _OF_A_PART:
            columns = tuple(zip(*map(self._values, self._latest), strict=True))
            self._parts.append(zlib.compress(pickle.dumps(columns, pickle.HIGHEST_PROTOCOL), 1))
            self._latest = []

    def extend(self, items: Iterable[T]) -> None:
        """Add objects at the end."""
        for item in items:
            self.add(item)

    def drained(self) -> Iterator[T]:
        """The objects, for the last time: what was read is no longer here."""
        self._parts.reverse()
        while self._parts:
            yield from self._unpacked(self._parts.pop())
        while self._latest:
            yield self._latest.pop(0)

    def _unpacked(self, part: bytes) -> Iterator[T]:
        columns: tuple[tuple[Any, ...], ...] = pickle.loads(zlib.decompress(part))  # noqa: S301  of this process
        return map(self._kind, *columns)


def in_order(kind: type[T], items: Iterable[T], key: Callable[[T], Any]) -> Iterator[T]:
    """The items, sorted by this key; those with equal keys keep their order. Takes all items before it returns."""
    runs: list[Spool[T]] = []
    taken, last = iter(items), None
    while batch := sorted(islice(taken, _SORTED_AT_ONCE), key=key):
        if last is None or key(batch[0]) < last:
            runs.append(Spool(kind))
        runs[-1].extend(batch)
        last = key(batch[-1])
    while len(runs) > _MERGED_AT_ONCE:
        some = (runs[begin : begin + _MERGED_AT_ONCE] for begin in range(0, len(runs), _MERGED_AT_ONCE))
        runs = [Spool(kind, _merged(each, key)) for each in some]
    return _merged(runs, key)


def _merged(runs: Iterable[Spool[T]], key: Callable[[T], Any]) -> Iterator[T]:
    return heapq.merge(*(run.drained() for run in runs), key=key)


def joined(key: Callable[[Any], str], *streams: Iterable[Any]) -> Iterator[list[list[Any]]]:
    """For each key that occurs, the items of each stream that have it. Each stream is in the order of this key."""

    def key_of(numbered: tuple[int, Any]) -> str:
        return key(numbered[1])

    merged = heapq.merge(*(zip(repeat(number), stream) for number, stream in enumerate(streams)), key=key_of)
    for _, items in groupby(merged, key_of):
        held: list[list[Any]] = [[] for _ in streams]
        for number, item in items:
            held[number].append(item)
        yield held

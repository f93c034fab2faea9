"""The descriptors that encoders learn from: rows of the videos without padding, and a bounded sample of all rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)

_AT_ONCE = 2**22


def descriptors_of(feature: NDArray[Any], facts: int) -> NDArray[Any]:
    """`(N, C - facts)` descriptors of a feature `(..., C)`: without its facts and without padding rows.

    `facts`: how many numbers at the beginning of a row give its position (`FeatureLayout.facts`). If there are any,
    rows whose facts are all zero are padding; otherwise every row is a descriptor.
    """
    rows = feature.reshape(-1, feature.shape[-1])
    return rows[rows[:, :facts].any(axis=1), facts:] if facts else rows


def in_parts(rows: NDArray[T], numbers: int) -> Iterator[NDArray[T]]:
    """The rows in parts, of at most 32 MB if each row has `numbers` of double precision. If there are no rows, one
    empty part."""
    step = max(1, _AT_ONCE // numbers)
    return (rows[begin : begin + step] for begin in range(0, max(1, len(rows)), step))


def tickets(name: str, rows: int) -> NDArray[np.int64]:
    """`(rows,)` random numbers that depend only on the name and on each row's index: rows with low numbers are
    sampled."""
    key = hashlib.sha256(name.encode()).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return random.integers(0, 2**63 - 1, rows)


@dataclass(frozen=True)
class Entries:
    """Rows that take part in a sample."""

    tickets: NDArray[np.int64]
    """(n,): the lowest ones are kept."""
    owners: NDArray[np.int64]
    """(n, ...): the value that belongs to each row."""
    rows: NDArray[Any]
    """(n, D)"""

    def __len__(self) -> int:
        return len(self.tickets)

    def lowest(self, most: int) -> Entries:
        """At most `most` entries, those with the lowest tickets."""
        kept = np.argsort(self.tickets, kind="stable")[:most]
        return Entries(self.tickets[kept], self.owners[kept], self.rows[kept])

    def below(self, ticket: int) -> Entries:
        """The entries with lower tickets."""
        kept = self.tickets < ticket
        return self if kept.all() else Entries(self.tickets[kept], self.owners[kept], self.rows[kept])

    @classmethod
    def joined(cls, parts: list[Entries]) -> Entries:
        """All entries of several parts."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__))


class Sample:
    """At most `most` of the entries that are added: those with the lowest tickets, in any order of arrival.

    It holds up to twice as many in between, so that adding few of many entries is cheap.
    """

    def __init__(self, most: int) -> None:
        self.seen = 0
        """Entries that were added."""
        self._most = most
        self._parts: list[Entries] = []
        self._held = 0
        self._bound = 2**63 - 1
        """Entries with a ticket at least as high as this cannot be kept."""

    def add(self, entries: Entries) -> None:
        """Raises `ValueError` if the rows have another width than those before."""
        self.join(entries, len(entries))

    def join(self, entries: Entries, seen: int) -> None:
        """Add what `wanted`, or another sample, has kept of `seen` entries."""
        self.seen += seen
        kept = entries.below(self._bound)
        if not len(kept):
            return
        if self._parts and kept.rows.shape[1] != self._parts[0].rows.shape[1]:
            raise ValueError(
                f"rows of {kept.rows.shape[1]} numbers cannot follow rows of {self._parts[0].rows.shape[1]}"
            )
        self._parts.append(kept)
        self._held += len(kept)
        if self._held > 2 * self._most:
            self.entries()

    def wanted(self, entries: Entries) -> Entries:
        """The entries that would be kept if no others were added."""
        return entries.below(self._bound).lowest(self._most)

    @property
    def whole(self) -> bool:
        """Whether every entry that was added is kept."""
        return self.seen <= self._most

    def entries(self) -> Entries | None:
        """The sample, in the order of its tickets, which is random; None: it is empty."""
        if not self._parts:
            return None
        kept = Entries.joined(self._parts).lowest(self._most)
        self._parts, self._held = [kept], len(kept)
        if len(kept) == self._most:
            self._bound = int(kept.tickets[-1])
        return kept


class Subsample:
    """At most `most` of the rows that are added, each with equal probability, in little more memory than these rows
    need.

    The sample depends on the seed and on the names of the videos, not on the order in which they are added, so workers
    that finish in another order learn the same codebook. Each row gets a random number from the name of its video and
    its index there; the rows with the lowest numbers are the sample.
    """

    def __init__(self, most: int, seed: int = 0) -> None:
        self._seed = seed
        self._sample = Sample(most)

    def add(self, video: str, rows: NDArray[Any]) -> None:
        """Add the `(N, D)` rows of one video, which keep their precision. Raises `ValueError` if their width differs
        from the rows before."""
        drawn = tickets(f"{self._seed}/{video}", len(rows))
        try:
            self._sample.add(Entries(drawn, np.zeros(len(rows), np.int64), rows))
        except ValueError as error:
            raise ValueError(f"{video}: {error}") from error

    def rows(self) -> NDArray[Any]:
        """The sample, `(n, D)`, in a random order. Raises `ValueError` if nothing was added."""
        entries = self._sample.entries()
        if entries is None:
            raise ValueError("there are no descriptors to learn from")
        return entries.rows

"""The descriptors that encoders learn from: rows of the videos without padding, and a bounded sample of all of them."""

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
    """`(N, C - facts)` descriptors of a feature `(..., C)`: without its facts, and without rows that have none.

    `facts`: how many numbers at the beginning of a row say where it is (`FeatureLayout.facts`). If there are any, rows
    whose facts are all zero are padding; else every row is a descriptor.
    """
    rows = feature.reshape(-1, feature.shape[-1])
    return rows[rows[:, :facts].any(axis=1), facts:] if facts else rows


def in_parts(rows: NDArray[T], numbers: int) -> Iterator[NDArray[T]]:
    """The rows, as many at a time as need 32 MB for `numbers` of double precision each; of no rows one part without
    any."""
    step = max(1, _AT_ONCE // numbers)
    return (rows[begin : begin + step] for begin in range(0, max(1, len(rows)), step))


def tickets(name: str, rows: int) -> NDArray[np.int64]:
    """`(rows,)` random numbers that depend on the name and on each row's place alone: who has low ones is sampled."""
    key = hashlib.sha256(name.encode()).digest()
    random = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return random.integers(0, 2**63 - 1, rows)


@dataclass(frozen=True)
class Entries:
    """Rows that take part in a sample."""

    tickets: NDArray[np.int64]
    """(n,): the lowest ones are kept."""
    owners: NDArray[np.int64]
    """(n, ...): what each row belongs to."""
    rows: NDArray[Any]
    """(n, D)"""

    def __len__(self) -> int:
        return len(self.tickets)

    def lowest(self, most: int) -> Entries:
        """At most so many, by their tickets."""
        kept = np.argsort(self.tickets, kind="stable")[:most]
        return Entries(self.tickets[kept], self.owners[kept], self.rows[kept])

    def below(self, ticket: int) -> Entries:
        """Those with lower tickets."""
        kept = self.tickets < ticket
        return self if kept.all() else Entries(self.tickets[kept], self.owners[kept], self.rows[kept])

    @classmethod
    def joined(cls, parts: list[Entries]) -> Entries:
        """All of several."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__))


class Sample:
    """At most `most` entries of all that are added: those with the lowest tickets, whatever order they come in.

    It holds twice as many in between, so that few of many entries cost little.
    """

    def __init__(self, most: int) -> None:
        self.seen = 0
        """Entries that were added."""
        self._most = most
        self._parts: list[Entries] = []
        self._held = 0
        self._bound = 2**63 - 1
        """No entry with a ticket as high as this can be kept."""

    def add(self, entries: Entries) -> None:
        """Raises `ValueError` if the rows have another width than those before."""
        self.join(entries, len(entries))

    def join(self, entries: Entries, seen: int) -> None:
        """Add what `wanted` of them, or another sample, has kept of so many entries."""
        self.seen += seen
        kept = entries.below(self._bound)
        if not len(kept):
            return
        if self._parts and kept.rows.shape[1] != self._parts[0].rows.shape[1]:
            raise ValueError(f"rows of {kept.rows.shape[1]} numbers follow rows of {self._parts[0].rows.shape[1]}")
        self._parts.append(kept)
        self._held += len(kept)
        if self._held > 2 * self._most:
            self.entries()

    def wanted(self, entries: Entries) -> Entries:
        """Those of them that would be kept, if no others came."""
        return entries.below(self._bound).lowest(self._most)

    @property
    def whole(self) -> bool:
        """Whether every entry that was added is kept."""
        return self.seen <= self._most

    def entries(self) -> Entries | None:
        """The sample, in the order of its tickets, which is a random one; None: there is nothing."""
        if not self._parts:
            return None
        kept = Entries.joined(self._parts).lowest(self._most)
        self._parts, self._held = [kept], len(kept)
        if len(kept) == self._most:
            self._bound = int(kept.tickets[-1])
        return kept


class Subsample:
    """At most `most` rows of all that are added, each as likely as any other, in memory for little more than these.

    Which rows are kept depends on the seed and on the names of the videos, not on the order in which they come, so
    workers that finish in another order learn the same codebook. A row keeps a random number that is made from the name
    of its video and its place there; those with the lowest numbers are the sample.
    """

    def __init__(self, most: int, seed: int = 0) -> None:
        self._seed = seed
        self._sample = Sample(most)

    def add(self, video: str, rows: NDArray[Any]) -> None:
        """The `(N, D)` rows of one video, which keep their precision. Raises `ValueError` if they have another width
        than those before."""
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

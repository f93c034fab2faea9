"""A log in the object store: numbered objects, each written once.

    <prefix>0000000001, <prefix>0000000002, ...

A number is written only if it does not exist yet (`if_absent`), so of several writers that want the same number exactly
one succeeds, and the others get `Conflict`. Fences, locks, the history of a job and registrations are such logs.
Numbers begin with 1 and only grow.

Old objects may be deleted, but the newest few stay (`prune`). A listing is not a snapshot: if only the newest stayed, a
listing during which the next is written and this one deleted could contain neither, and its reader could consider an
old number free. Of several, it finds one, and each number after that is taken.

After `Unavailable` it is unknown whether the object was written. The adapters repeat such a request and recognise their
own object, so `Conflict` always means that another writer was first.
"""

from __future__ import annotations

import re

from essp_common.errors import Conflict
from essp_common.objects.port import ObjectStore

_DIGITS = 10
_KEPT = 4
_NUMBER = re.compile(rf"[0-9]{{{_DIGITS}}}")

REMEDY = "restore it from a backup, or remove it, and what was there before it counts"
"""For an unreadable newest object of a log in which each object is complete."""


def numbered(prefix: str, number: int, suffix: str = "") -> str:
    """Return the key of a number; keys sort like their numbers."""
    return f"{prefix}{number:0{_DIGITS}d}{suffix}"


class NumberedLog:
    """The log below one prefix. Thread-safe, also between processes."""

    def __init__(self, store: ObjectStore, prefix: str, suffix: str = "") -> None:
        """`prefix` ends in `/`; it must contain only objects of this log, and folders."""
        self._store = store
        self._prefix = prefix
        self._suffix = suffix

    def key(self, number: int) -> str:
        """Return the key of the object with this number."""
        return numbered(self._prefix, number, self._suffix)

    def uri(self, number: int) -> str:
        """Return the URI of the object with this number, for users."""
        return self._store.uri(self.key(number))

    def numbers(self) -> list[int]:
        """Return the existing numbers, ascending."""
        names = (
            info.key.removeprefix(self._prefix).removesuffix(self._suffix) for info in self._store.list(self._prefix)
        )
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def newest(self) -> int:
        """Return the highest number; 0 if the log is empty."""
        return max(self.numbers(), default=0)

    def read(self, number: int) -> bytes:
        """Return the object with this number. Raises `NotFound`."""
        return self._store.get(self.key(number))

    def write(self, number: int, data: bytes) -> None:
        """Write this number. Raises `Conflict` if it already exists."""
        self._store.put(self.key(number), data, if_absent=True)

    def append(self, data: bytes, above: int = 0) -> int:
        """Write the next free number that is higher than `above`. Returns that number."""
        number = max(self.newest(), above)
        while True:
            number += 1
            try:
                self.write(number, data)
            except Conflict:  # another writer was first
                continue
            return number

    def delete(self, number: int) -> None:
        """Remove an object; removing a missing object is not an error."""
        self._store.delete(self.key(number))

    def prune(self, newest: int) -> None:
        """Remove objects that are well before `newest`, which the caller has written."""
        for number in self.numbers():
            if number <= newest - _KEPT:
                self.delete(number)

"""Where the bytes of a sample are, and the stores through which they are read.

A `Place` is an object in a store. Each benchmark reads through its own stores: a copy elsewhere, a store slowed down to
the speed of a disk, or one that records each access. Sources therefore expose their places, and a `Wrap` replaces the
stores.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from essp_common.errors import EsspError
from essp_common.objects.archive import Archive
from essp_common.objects.port import ObjectStore

Wrap = Callable[[ObjectStore], ObjectStore]
"""Returns the store to read from instead of the given one."""


class Place(NamedTuple):
    """An object in a store."""

    store: ObjectStore
    key: str

    def through(self, wrap: Wrap) -> Place:
        """The same key in the wrapped store."""
        return Place(wrap(self.store), self.key)

    def file(self) -> str | None:
        """The local file that contains the bytes, if there is one. For a member of an archive, the archive."""
        store, key = self.store.whole(self.key) if isinstance(self.store, Archive) else self
        return store.local_path(key)


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes of an object."""

    place: Place
    start: int = 0
    length: int | None = None
    """None: to the end."""

    def read(self) -> bytes:
        """The bytes; fewer if the object ends earlier. Raises what the store raises."""
        return self.place.store.get(self.place.key, self.start, self.length)


def once_each(wrap: Wrap) -> Wrap:
    """A version of `wrap` that wraps each store only once, so that places that share a store still do. Thread-safe."""
    made: dict[int, tuple[ObjectStore, ObjectStore]] = {}
    lock = threading.Lock()

    def wrapped(store: ObjectStore) -> ObjectStore:
        with lock:
            if id(store) not in made:
                # keeps the store alive, because its id could otherwise be reused
                made[id(store)] = (store, wrap(store))
            return made[id(store)][1]

    return wrapped


def distinct(places: Iterable[Place]) -> list[Place]:
    """Each place once, in the order of first appearance."""
    return list({(id(place.store), place.key): place for place in places}.values())


def remove(store: ObjectStore, folder: str) -> None:
    """Remove everything in a folder as far as the store allows. Errors are suppressed so that they do not hide an
    earlier one."""
    with suppress(EsspError):
        for info in list(store.list(f"{folder}/")):
            with suppress(EsspError):
                store.delete(info.key)
    if (uri := store.uri(folder)).startswith("file://"):  # a failed write leaves its folder empty
        shutil.rmtree(uri.removeprefix("file://"), ignore_errors=True)

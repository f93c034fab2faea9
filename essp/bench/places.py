"""Where the bytes of a sample lie, and which stores they are read through.

A place is an object in a store. Each benchmark reads through stores of its own making: a copy elsewhere, a store that
is as slow as a disk, one that notes each access. So sources know places, and `Wrap` replaces their stores.
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
"""Gives the store that is read in place of another one."""


class Place(NamedTuple):
    """An object."""

    store: ObjectStore
    key: str

    def through(self, wrap: Wrap) -> Place:
        """The same key in another store."""
        return Place(wrap(self.store), self.key)

    def file(self) -> str | None:
        """The file of this machine that its bytes lie in, if there is one; of a member, its archive."""
        store, key = self.store.whole(self.key) if isinstance(self.store, Archive) else self
        return store.local_path(key)


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of an object."""

    place: Place
    start: int = 0
    length: int | None = None
    """None: up to the end."""

    def read(self) -> bytes:
        """The bytes, fewer at the end of the object. Raises as the store does."""
        return self.place.store.get(self.place.key, self.start, self.length)


def once_each(wrap: Wrap) -> Wrap:
    """`wrap`, called once for each store, so that places in one store stay in one store. Thread-safe."""
    made: dict[int, tuple[ObjectStore, ObjectStore]] = {}
    lock = threading.Lock()

    def wrapped(store: ObjectStore) -> ObjectStore:
        with lock:
            if id(store) not in made:
                made[id(store)] = (store, wrap(store))  # holds the store, or another one might get its id
            return made[id(store)][1]

    return wrapped


def distinct(places: Iterable[Place]) -> list[Place]:
    """Each place once, in the order of their first appearance."""
    return list({(id(place.store), place.key): place for place in places}.values())


def remove(store: ObjectStore, folder: str) -> None:
    """Everything in a folder, as far as the store lets that be done: what raised before is what matters."""
    with suppress(EsspError):
        for info in list(store.list(f"{folder}/")):
            with suppress(EsspError):
                store.delete(info.key)
    if (uri := store.uri(folder)).startswith("file://"):  # a write that failed leaves its folder empty
        shutil.rmtree(uri.removeprefix("file://"), ignore_errors=True)

"""What object stores that are only read have in common: they refuse to write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NoReturn

from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.runtime.addresses import shown_uri
from essp_common.runtime.troubles import Troubles


class ReadOnly(ABC):
    """The part of an `ObjectStore` that would write. Each method raises `ConfigError`."""

    @abstractmethod
    def unwritable(self) -> str:
        """Return why nothing can be written here."""

    @abstractmethod
    def uri(self, key: str) -> str:
        """Return the object's full URI."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> NoReturn:
        """Refuse."""
        self._refuse(key)

    def put_file(self, key: str, path: str) -> NoReturn:
        """Refuse."""
        self._refuse(key)

    def delete(self, key: str) -> NoReturn:
        """Refuse."""
        self._refuse(key)

    def _refuse(self, key: str) -> NoReturn:
        raise ConfigError(f"{shown_uri(self.uri(key))}: {self.unwritable()}", code="unsupported")


class Derived(ReadOnly):
    """A store whose objects are computed from those of another store, which lists and names them."""

    def __init__(self, store: ObjectStore) -> None:
        """`store`: contains what the objects are computed from."""
        self._store = store

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield nothing: such objects are found by listing the other store."""
        yield from ()

    def local_path(self, key: str) -> str | None:
        """Return None: no such object is a file of its own."""
        return None

    def troubles(self) -> Troubles:
        """Return the troubles of the other store."""
        return self._store.troubles()

    def uri(self, key: str) -> str:
        """Return the URI of the key in the other store."""
        return self._store.uri(key)

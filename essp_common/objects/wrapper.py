"""What stores over another store have in common: all that is not a request to it."""

from __future__ import annotations

from essp_common.objects.port import ObjectStore
from essp_common.runtime.troubles import Troubles


class StoreWrapper:
    """The part of an `ObjectStore` that only passes on what the other store says."""

    def __init__(self, store: ObjectStore) -> None:
        """`store`: the other store."""
        self._store = store

    def local_path(self, key: str) -> str | None:
        """Return None: reading the file itself would bypass this store."""
        self._store.local_path(key)  # refuses an invalid key
        return None

    def unwritable(self) -> str:
        """Return the answer of the other store."""
        return self._store.unwritable()

    def troubles(self) -> Troubles:
        """Return the troubles of the other store."""
        return self._store.troubles()

    def uri(self, key: str) -> str:
        """Return the object's URI in the other store."""
        return self._store.uri(key)

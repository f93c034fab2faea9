"""Stores that refuse or delay what a training writes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from essp_common.errors import EsspError
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.wiring import Stores
from tests.harness.waiting import LONGEST_S

RESULTS = ("/checkpoints/", "/scores/", "/history.json")
"""What a training writes, but for who owns it."""


class Unreliable(Stores):
    """Stores to which files of a training cannot be written while `failing`."""

    def __init__(self, error: EsspError, refuses: Sequence[str] = RESULTS) -> None:
        super().__init__(("file:///",))
        self.failing = True
        self.refused: list[str] = []
        """Checkpoints."""
        self.refuses = refuses
        self._error = error

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        stores = self

        class Refusing(DirectoryStore):
            def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
                if stores.failing and any(part in key for part in stores.refuses):
                    stores.refused += [key] if "/checkpoints/" in key else []
                    raise stores._error
                return super().put(key, data, if_absent=if_absent)

        return Refusing.from_url(uri)


class Slow(Stores):
    """Stores in which writing a checkpoint waits until it is allowed to go on."""

    def __init__(self) -> None:
        super().__init__(("file:///",))
        self.allowed = threading.Event()

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        allowed = self.allowed

        class Waiting(DirectoryStore):
            def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
                if "/checkpoints/" in key and not allowed.wait(LONGEST_S):
                    raise TimeoutError
                return super().put(key, data, if_absent=if_absent)

        return Waiting.from_url(uri)

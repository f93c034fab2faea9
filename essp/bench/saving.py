"""Ways to save a checkpoint while a training goes on, or has to wait.

    none          nothing is saved
    direct        the training waits until the store has everything
    background    the training waits for a copy in memory; a thread writes it, as a trainer of ESSP does
    burst         the training waits until a fast folder has everything; a thread copies it to the store

A checkpoint is a folder, its files written first and its manifest last, so that what has a manifest is whole. Files on
this machine are flushed to the disk, with their folder (`fsync`), and appear by renaming. The newest `KEPT` checkpoints
stay; of an older one the manifest is removed first.
"""

from __future__ import annotations

import json
import shutil
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Literal, Protocol

from essp_common.errors import EsspError, PermanentError
from essp_common.objects.burst_buffer import BurstBuffer
from essp_common.objects.port import ObjectStore

Mode = Literal["none", "direct", "background", "burst"]
MODES: tuple[Mode, ...] = ("none", "direct", "background", "burst")
KEPT = 2
MANIFEST = "manifest.json"

_PATIENCE_S = 5.0
"""A store that fails for longer ends the benchmark."""

Files = Mapping[str, bytes]


class Saver(Protocol):
    """Saves checkpoints in the order of the calls. Errors are raised from the call after which they are known."""

    @abstractmethod
    def save(self, step: int, files: Files) -> None:
        """Returns as soon as the training may go on."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything is in the store. Raises what has kept it from getting there."""

    @abstractmethod
    def abandon(self) -> None:
        """End all threads, and leave the rest undone. Idempotent."""

    @property
    def passed_by(self) -> int:
        """Files that went to the store directly, as a buffer had no room for them."""
        return 0


class Nothing(Saver):
    """Saves nothing."""

    def save(self, step: int, files: Files) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to wait for."""

    def abandon(self) -> None:
        """Nothing to end."""


class Direct(Saver):
    """Writes where the training waits."""

    def __init__(self, store: ObjectStore) -> None:
        self._folders = _Folders(lambda key, data: store.put(key, data), store.delete)

    def save(self, step: int, files: Files) -> None:
        """Write everything."""
        self._folders.write(step, files)

    def finish(self) -> None:
        """Nothing is under way."""

    def abandon(self) -> None:
        """Nothing to end."""


class Background(Saver):
    """Writes in a thread, one checkpoint at a time: the next one waits for the one before."""

    def __init__(self, store: ObjectStore) -> None:
        self._folders = _Folders(lambda key, data: store.put(key, data), store.delete)
        self._pool = ThreadPoolExecutor(1, "essp-bench-save")
        self._writing: Future[None] | None = None

    def save(self, step: int, files: Files) -> None:
        """`files` are not changed by anybody any more: they are the copy."""
        self.finish()
        self._writing = self._pool.submit(self._folders.write, step, files)

    def finish(self) -> None:
        """Of the one that is being written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def abandon(self) -> None:
        """The file in hand is written."""
        self._folders.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)


class Burst(Saver):
    """Writes to a fast store, from which a burst buffer copies."""

    def __init__(self, store: ObjectStore, fast: ObjectStore, most_bytes: int) -> None:
        self._buffer = BurstBuffer(fast, store, most_bytes, _PATIENCE_S)
        self._folders = _Folders(self._buffer.put, self._buffer.delete)

    def save(self, step: int, files: Files) -> None:
        """Waits where the buffer is full."""
        self._folders.write(step, files)

    def finish(self) -> None:
        """The buffer is empty then."""
        self._buffer.flush()

    def abandon(self) -> None:
        """What is in the fast store stays there."""
        self._buffer.abandon()

    @property
    def passed_by(self) -> int:
        """Those that are larger than the buffer, or came when its disk was full."""
        return self._buffer.passed_by


class _Folders:
    """Checkpoints as folders of a store."""

    def __init__(self, put: Callable[[str, bytes], object], delete: Callable[[str], object]) -> None:
        self._put = put
        self._delete = delete
        self._written: deque[tuple[str, list[str]]] = deque()
        self._stopped = False

    def write(self, step: int, files: Files) -> None:
        """All files, then the manifest; then remove what is too old."""
        folder = f"step-{step:06}"
        for name, data in files.items():
            if self._stopped:
                return
            self._put(f"{folder}/{name}", data)
        sizes = {name: len(data) for name, data in files.items()}
        self._put(f"{folder}/{MANIFEST}", json.dumps({"step": step, "files": sizes}).encode())
        self._written.append((folder, [MANIFEST, *files]))
        while len(self._written) > KEPT:
            old, names = self._written.popleft()
            for name in names:
                self._delete(f"{old}/{name}")

    def stop(self) -> None:
        """Write no further file."""
        self._stopped = True


def check(store: ObjectStore) -> list[str]:
    """The checkpoints that a store has; raises `PermanentError` if one of them is not as its manifest says."""
    sizes = {info.key: info.size_bytes for info in store.list()}
    folders = sorted(key.rpartition("/")[0] for key in sizes if key.endswith(f"/{MANIFEST}"))
    for folder in folders:
        manifest = json.loads(store.get(f"{folder}/{MANIFEST}"))
        for name, size_bytes in manifest["files"].items():
            if sizes.get(f"{folder}/{name}") != size_bytes:
                raise PermanentError(
                    f"{store.uri(folder)}/{name} has {sizes.get(f'{folder}/{name}')} bytes of {size_bytes}"
                )
    return folders


def remove(store: ObjectStore, folder: str) -> None:
    """Everything in a folder, as far as the store lets that be done: what raised before is what matters."""
    with suppress(EsspError):
        for info in list(store.list(f"{folder}/")):
            with suppress(EsspError):
                store.delete(info.key)
    if (uri := store.uri(folder)).startswith("file://"):  # a write that failed leaves its folder empty
        shutil.rmtree(uri.removeprefix("file://"), ignore_errors=True)

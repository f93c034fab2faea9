"""The data files of a checkpoint: writing, reading back, hashing, and loading.

A file may contain differences to the file of the same name in an earlier checkpoint of the trainer, its base. A base is
always complete by itself, so no file needs more than one other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from essp_common.artifacts.ownership import CheckpointName, Number
from essp_common.errors import NotFound, PermanentError
from essp_common.objects.port import ObjectStore

_CHUNK = 8 * 2**20
_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"

REMEDY = "restore it from a backup, or remove the trainer's folder to train from the start"
_OF_STORE = "it was written just now, so see that the store, its disk and the network to it are well"


class BadCheckpoint(PermanentError):
    """A checkpoint that does not match its manifest."""

    kind = "damaged"


class StoredBase(BaseModel):
    """The file to which another one is a difference."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: Number
    """Step of the checkpoint that the file belongs to."""
    incarnation: Number
    """Incarnation of that checkpoint."""
    size_bytes: Annotated[int, Field(ge=0, lt=2**64)]
    sha256: str

    @property
    def checkpoint(self) -> CheckpointName:
        """The checkpoint that it belongs to."""
        return CheckpointName(self.step, self.incarnation)

    @property
    def name(self) -> str:
        """The name by which a dependent file refers to it (`Base.name`)."""
        return f"{self.step}-{self.incarnation}"


class StoredFile(BaseModel):
    """One data file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(pattern=_NAME)
    size_bytes: Annotated[int, Field(ge=0, lt=2**64)]
    sha256: str
    base: StoredBase | None = None
    """The other file that is needed to read it; null: it is complete by itself."""


Data = Callable[[ObjectStore, str], tuple[StoredFile, ...]]
"""Writes the files of a checkpoint below a prefix of a store, reads each back (`read_back`), and describes them.

Raises `BadCheckpoint` if the store returns other bytes than it was given, and what the store raises.
"""


def in_memory(files: Mapping[str, bytes]) -> Data:
    """Files from bytes in memory, by name."""

    def write(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
        stored = tuple(
            StoredFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in files.items()
        )
        for name, data in files.items():
            store.put(prefix + name, data)
        read_back(store, prefix, stored)
        return stored

    return write


def verify(store: ObjectStore, prefix: str, files: Iterable[StoredFile]) -> None:
    """Read these files. Raises `BadCheckpoint` naming the first one that is missing or differs."""
    for file in files:
        _read(store, prefix + file.name, file, REMEDY)


def read_back(store: ObjectStore, prefix: str, files: Iterable[StoredFile]) -> None:
    """`verify` for files that were just written: nothing is lost with them, because they can be written again."""
    for file in files:
        _read(store, prefix + file.name, file, _OF_STORE)


def load(store: ObjectStore, prefix: str, file: StoredFile) -> bytes:
    """One file, checked against its hash. Raises `BadCheckpoint`."""
    key = prefix + file.name
    try:
        data = store.get(key)
    except NotFound as error:
        raise _missing(store, key, REMEDY) from error
    _check_size(store, key, file, len(data), REMEDY)
    _check_hash(store, key, file, hashlib.sha256(data).hexdigest(), REMEDY)
    return data


def _read(store: ObjectStore, key: str, file: StoredFile, remedy: str) -> None:
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with store.open(key) as source:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                size_bytes += len(chunk)
    except NotFound as error:
        raise _missing(store, key, remedy) from error
    _check_size(store, key, file, size_bytes, remedy)
    _check_hash(store, key, file, digest.hexdigest(), remedy)


def _missing(store: ObjectStore, key: str, remedy: str) -> BadCheckpoint:
    return BadCheckpoint(f"{store.uri(key)} is missing; {remedy}")


def _check_size(store: ObjectStore, key: str, file: StoredFile, size_bytes: int, remedy: str) -> None:
    if size_bytes != file.size_bytes:
        raise BadCheckpoint(f"{store.uri(key)} has {size_bytes} bytes instead of {file.size_bytes}; {remedy}")


def _check_hash(store: ObjectStore, key: str, file: StoredFile, sha256: str, remedy: str) -> None:
    if sha256 != file.sha256:
        raise BadCheckpoint(f"{store.uri(key)} is damaged: its SHA-256 differs from the manifest; {remedy}")

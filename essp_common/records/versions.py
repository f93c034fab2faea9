"""The versions of a data set of records: its contents, from its first state.

    <folder>/versions/0000000001.json    the files of version 1 with their hashes, and the deleted keys
    <folder>/records/<name>.records      a file of records (`chunk.py`); `orphans.py` explains its name
    <folder>/records/<name>.names        the display names of its records, if known (`names.py`)

Files and versions are never changed. Appending adds files and a version that names the old and the new files; deleting
adds a version that leaves keys out. A version contains the hash of its predecessor. It is written after all of its
files, so the newest version is always complete, even if a writer is interrupted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from essp_common.errors import ConfigError, Conflict, NotFound, PermanentError
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems

_VERSIONS, FILES, SUFFIX, NAMES_SUFFIX = "versions/", "records/", ".records", ".names"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordFile(_Model):
    """One file of a version."""

    name: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    sha256: Sha256
    bytes: Count
    records: Annotated[int, Field(gt=0)]
    first_key: Count

    @property
    def key(self) -> str:
        """Its key in the folder of the data set."""
        return f"{FILES}{self.name}{SUFFIX}"

    @property
    def names_key(self) -> str:
        """The key of the names of its records, if they have names (`names.py`)."""
        return f"{FILES}{self.name}{NAMES_SUFFIX}"


class Version(_Model):
    """The contents of a data set."""

    format: Literal[1] = 1
    parent: Sha256 | Literal[""] = ""
    """SHA-256 of the version that this one was derived from; empty for the first version."""
    classes: tuple[str, ...] = ()
    files: tuple[RecordFile, ...] = ()
    deleted: tuple[tuple[Count, Count], ...] = ()
    """Deleted keys: `(first, after the last)`, ascending."""

    @model_validator(mode="after")
    def _consistent(self) -> Version:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes: a name comes twice")
        next_key = 0
        for file in self.files:
            if file.first_key != next_key:
                raise ValueError(f"files: the keys of {file.key} do not follow those before it")
            next_key += file.records
        behind = 0
        for first, end in self.deleted:
            if not behind <= first < end <= next_key:
                raise ValueError("deleted: ranges of keys have to ascend, and to be of keys that there are")
            behind = end
        return self

    @property
    def next_key(self) -> int:
        """The key of the next appended record; keys are never reused."""
        return sum(file.records for file in self.files)

    @property
    def records(self) -> int:
        """The number of records, without deleted ones."""
        return self.next_key - sum(end - first for first, end in self.deleted)

    def to_bytes(self) -> bytes:
        """The version in its stored form."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=1).encode()


class DataSet:
    """A folder of records and their versions, in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        """`store`: rooted at the folder."""
        self.store = store
        self.where = store.uri(_VERSIONS.rstrip("/")).removesuffix("/" + _VERSIONS.rstrip("/"))
        """Its URI, for messages."""
        self._log = NumberedLog(store, _VERSIONS, ".json")

    def versions(self) -> list[int]:
        """The numbers of the existing versions, ascending."""
        return self._log.numbers()

    def version(self, number: int | None = None) -> tuple[int, Version]:
        """A version (default: the newest), and its number. Raises `NotFound`, and `PermanentError` for damage."""
        known = self.versions()
        if not known:
            raise NotFound(f"{self.where} holds no records; make them with `essp records build`")
        if number is not None and number not in known:
            raise NotFound(f"{self.where} has no version {number}; it has {known[0]} to {known[-1]}")
        number = known[-1] if number is None else number
        where = self._log.uri(number)
        try:
            found = Version.model_validate_json(self._log.read(number))
        except ValidationError as error:
            raise PermanentError(
                f"{where} is damaged: {problems(error, Version)[0]}; restore it from a backup"
            ) from error
        if not found.files:
            raise PermanentError(f"{where} is damaged: it names no files; restore it from a backup")
        return number, found

    def commit(self, number: int, version: Version) -> None:
        """Store this version under that number, directly after its predecessor.

        Raises `Conflict` if another writer was first.
        """
        try:
            self._log.write(number, version.to_bytes())
        except Conflict as error:
            raise Conflict(
                f"version {number} of {self.where} was written by another process meanwhile; "
                "run this again to follow it"
            ) from error

    def delete(self, keys: Iterable[range], number: int | None = None) -> int:
        """Make a version without these keys. Returns its number.

        `number`: the version that they are deleted from, by default the newest. Raises `ConfigError` for unknown keys,
        and `Conflict` if a newer version was written meanwhile.
        """
        number, before = self.version(number)
        wanted = [(one.start, one.stop) for one in keys if _checked(one, before.next_key)]
        ranges = _merged([*before.deleted, *wanted])
        after = Version(parent=digest(before), classes=before.classes, files=before.files, deleted=ranges)
        self.commit(number + 1, after)
        return number + 1


def digest(version: Version) -> str:
    """SHA-256 of a version in its stored form."""
    return hashlib.sha256(version.to_bytes()).hexdigest()


def _checked(keys: range, end: int) -> range:
    if not 0 <= keys.start < keys.stop <= end or keys.step != 1:
        raise ConfigError(f"keys {keys.start} to {keys.stop - 1} are not among 0 to {end - 1}", code="unknown")
    return keys


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same keys in ascending ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)

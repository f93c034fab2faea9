"""Builds the files of a checkpoint from the state of a training: rounded, compressed, or as differences.

    save     1      2      3      4      5 ...        with `exact_every: 4`
    base     itself 1      1      1      itself

Files may be differences to a base: a checkpoint that is complete in itself and contains no differences. So a file needs
at most one other file. A new base follows after `exact_every` saves, or as soon as the difference of a file that used
to pay off no longer does. A file whose first difference does not pay off (such as momentum, which each step changes
completely) is written in full until the next base. A rounded file is never a difference, nor the base of one.

The arrays of the base are kept here. A save becomes a base only once it has been completed: a failed one was not
stored. A new process has no base, so its first save stands alone. This needs only NumPy and zstandard, so it can run in
a separate process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from essp_common.runtime.failpoints import failpoint
from essp_common.tensors.packed import Array, Base, Packing, pack

_WORTH = 0.95
"""Share of the size of the base's file; a difference that saves less does not pay for reading two files."""

Arrays = Mapping[str, Array]


class BaseFile(NamedTuple):
    """The file that another file is a difference to."""

    checkpoint: str
    size_bytes: int
    sha256: str


class PackedFile(NamedTuple):
    """One file of a checkpoint."""

    name: str
    data: bytes
    sha256: str
    base: BaseFile | None

    @classmethod
    def of(cls, name: str, data: bytes, base: BaseFile | None = None) -> PackedFile:
        """Create a file with its hash."""
        return cls(name, data, hashlib.sha256(data).hexdigest(), base)


@dataclass
class _Base:
    """A checkpoint that stands alone, with its contents."""

    checkpoint: str
    arrays: dict[str, Arrays] = field(default_factory=dict)
    """File -> copies of its arrays; without the files whose differences do not pay off."""
    files: dict[str, BaseFile] = field(default_factory=dict)
    worthy: set[str] = field(default_factory=set)
    """Files whose differences have paid off."""
    saves: int = 1
    """Number of completed saves, including its own."""


class Packer:
    """Packs the checkpoints of one training, one after the other."""

    def __init__(self, delta: bool, exact_every: int) -> None:
        self._delta = delta and exact_every > 1
        self._exact_every = exact_every
        self._base: _Base | None = None
        self._next: _Base | None = None
        """The base if the current save is completed."""

    def pack(
        self, checkpoint: str, files: Mapping[str, Arrays], packings: Mapping[str, Packing], alone: bool = False
    ) -> list[PackedFile]:
        """Return the files of a checkpoint with this name. `alone`: the checkpoint uses no differences and will not be
        a base, because nothing follows it. `packings`: one per file, also for files without arrays. Afterwards call
        `settle`, or this again.

        Raises `PermanentError` for arrays that cannot be packed.
        """
        # a child process does not know files without arrays
        files = {name: files.get(name, {}) for name in packings}
        self._next = self._base
        if alone or not self._delta:
            packed = [PackedFile.of(name, pack(arrays, packings[name])) for name, arrays in files.items()]
        else:
            packed = self._differences(files, packings) or self._new_base(checkpoint, files, packings)
        failpoint("checkpoint.packed")
        return packed

    def settle(self, completed: bool) -> None:
        """Note whether what was packed last has become a checkpoint."""
        if completed and self._next is not None:
            self._next.saves += self._next is self._base
            self._base = self._next
        self._next = None

    def _differences(self, files: Mapping[str, Arrays], packings: Mapping[str, Packing]) -> list[PackedFile]:
        """Return the files, as differences where that pays off; empty if it no longer does for one, or if a new base is
        due."""
        if (base := self._base) is None or base.saves >= self._exact_every:
            return []
        packed = []
        for name, arrays in files.items():
            known = None if packings[name].bits else base.arrays.get(name)
            made = None if known is None else self._difference(base, name, arrays, packings[name])
            if made is None and known is not None:
                if name in base.worthy:
                    return []
                del base.arrays[name]
            packed.append(made or PackedFile.of(name, pack(arrays, packings[name])))
        if not any(file.base for file in packed):
            base.arrays.clear()  # no stored checkpoint needs this base from now on, so it may be removed
        return packed

    def _difference(self, base: _Base, name: str, arrays: Arrays, packing: Packing) -> PackedFile | None:
        data = pack(arrays, packing, Base(base.checkpoint, base.arrays[name]))
        if len(data) > _WORTH * base.files[name].size_bytes:
            return None
        base.worthy.add(name)
        return PackedFile.of(name, data, base.files[name])

    def _new_base(
        self, checkpoint: str, files: Mapping[str, Arrays], packings: Mapping[str, Packing]
    ) -> list[PackedFile]:
        self._next, packed = _Base(checkpoint), []
        for name, arrays in files.items():
            if not packings[name].bits:
                arrays = self._next.arrays[name] = {key: np.array(array, order="C") for key, array in arrays.items()}
            file = PackedFile.of(name, pack(arrays, packings[name]))
            self._next.files[name] = BaseFile(checkpoint, len(file.data), file.sha256)
            packed.append(file)
        return packed

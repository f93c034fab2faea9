"""Makes the files of a checkpoint from the state of a training: rounded, compressed, or as differences.

    save     1      2      3      4      5 ...        with `exact_every: 4`
    base     itself 1      1      1      itself

A checkpoint to which others are differences, their base, stands alone: none of its files is a difference. So a file
needs at most one other. There is a new base after so many saves, and as soon as the difference of a file that was
worth it is so no more. A file whose first difference is not worth it (momentum, which each step changes as a whole) is
written as it is until the next base. A file that is rounded is no difference, and none is one to it.

The arrays of the base are kept here. A save counts as base only when it was completed: what failed is nowhere. A new
process knows none, so that its first save stands alone. This needs NumPy and zstandard alone: it may run in a process
of its own.
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
"""Of the bytes of the base's file; a difference that saves less is not worth reading two files."""

Arrays = Mapping[str, Array]


class BaseFile(NamedTuple):
    """The file to which one is a difference."""

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
        """With its hash."""
        return cls(name, data, hashlib.sha256(data).hexdigest(), base)


@dataclass
class _Base:
    """A checkpoint that stands alone, with what it held."""

    checkpoint: str
    arrays: dict[str, Arrays] = field(default_factory=dict)
    """File -> copies of its arrays; without those files whose differences are not worth it."""
    files: dict[str, BaseFile] = field(default_factory=dict)
    worthy: set[str] = field(default_factory=set)
    """Files that had differences that were worth it."""
    saves: int = 1
    """Completed ones, with its own."""


class Packer:
    """Packs the checkpoints of one training, one after the other."""

    def __init__(self, delta: bool, exact_every: int) -> None:
        self._delta = delta and exact_every > 1
        self._exact_every = exact_every
        self._base: _Base | None = None
        self._next: _Base | None = None
        """What is the base if the save is completed."""

    def pack(
        self, checkpoint: str, files: Mapping[str, Arrays], packings: Mapping[str, Packing], alone: bool = False
    ) -> list[PackedFile]:
        """The files of a checkpoint of this name. `alone`: no differences, and none to it: nothing follows it.

        `packings`: of each file, also of those that have no arrays. Then call `settle`, or this once more. Raises
        `PermanentError` for what cannot be packed.
        """
        files = {name: files.get(name, {}) for name in packings}  # of a file without arrays, a child is told nothing
        self._next = self._base
        if alone or not self._delta:
            packed = [PackedFile.of(name, pack(arrays, packings[name])) for name, arrays in files.items()]
        else:
            packed = self._differences(files, packings) or self._new_base(checkpoint, files, packings)
        failpoint("checkpoint.packed")
        return packed

    def settle(self, completed: bool) -> None:
        """What was packed last is a checkpoint now, or will never be one."""
        if completed and self._next is not None:
            self._next.saves += self._next is self._base
            self._base = self._next
        self._next = None

    def _differences(self, files: Mapping[str, Arrays], packings: Mapping[str, Packing]) -> list[PackedFile]:
        """The files, as differences where that is worth it; none: it was so, and is no more, or a new base is due."""
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
            base.arrays.clear()  # no checkpoint that stays needs this base: it may be removed from now on
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

"""The scores of a search in shared memory: written once, mapped by each process that tries candidates.

arrays of all trainers, one after the other │ JSON: their positions, the names of videos and classes, the groups
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from essp_aggregator.fusion import Aligned
from essp_common.artifacts.scores import ClipScores, VideoScores
from essp_common.errors import Unavailable
from essp_common.runtime.memory_file import memory_file
from essp_common.tensors.packed import Array
from essp_common.tensors.places import Place, arrays_at

_ALIGNMENT, _SIZE_BYTES = 64, 8


class SharedScores:
    """Context manager of the shared memory. The memory is freed once this is closed and every process that maps it has
    ended."""

    def __init__(self, scores: Aligned) -> None:
        """Raises `Unavailable` if the machine has no memory for a copy."""
        self.fd = memory_file("essp-scores")
        try:
            with os.fdopen(self.fd, "wb", closefd=False) as file:
                places = []
                for trainer, part in scores.parts.items():
                    for name, array in _arrays(part).items():
                        file.write(bytes(-file.tell() % _ALIGNMENT))
                        places.append(Place(trainer, name, file.tell(), str(array.dtype), array.shape, array.strides))
                        array.tofile(file)
                self.size = file.tell()
                """Size of the arrays in bytes; the rest is JSON."""
                means = next(iter(scores.parts.values())).means
                names = {
                    "places": places,
                    "videos": means.video_id,
                    "classes": means.classes,
                    "groups": scores.groups.tolist(),
                }
                file.write(json.dumps(names).encode())
        except OSError as error:
            self.close()
            raise Unavailable(f"no memory for a copy of the scores of all clips: {error}") from error

    @classmethod
    def copied(cls, data: bytes) -> Self:
        """The shared memory with what `data` returned for other scores. Raises `Unavailable` as above."""
        made = cls.__new__(cls)
        made.fd = memory_file("essp-scores")
        made.size = int.from_bytes(data[:_SIZE_BYTES], "big")
        try:
            with os.fdopen(made.fd, "wb", closefd=False) as file:
                file.write(memoryview(data)[_SIZE_BYTES:])
        except OSError as error:
            made.close()
            raise Unavailable(f"no memory for a copy of the scores of all clips: {error}") from error
        return made

    @property
    def data(self) -> bytes:
        """All of it, for another machine."""
        length = os.fstat(self.fd).st_size
        with mmap.mmap(self.fd, length, prot=mmap.PROT_READ) as memory:
            return self.size.to_bytes(_SIZE_BYTES, "big") + memory[:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release this process's handle. Processes that have mapped the memory keep it."""
        os.close(self.fd)


def scores_at(fd: int, size: int) -> Aligned:
    """The scores in this memory, as read-only arrays that are not copied."""
    memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    names = json.loads(memory[size:])
    arrays = arrays_at(memory, [Place(*place) for place in names["places"]])
    parts = {trainer: _part(own, names) for trainer, own in arrays.items()}
    return Aligned(parts, (), np.array(names["groups"], np.intp))


def _arrays(part: ClipScores) -> dict[str, Array]:
    means = part.means
    found = {
        "class_id": means.class_id,
        "means": means.probabilities,
        "labels": means.labels,
        "clips": part.clips,
        "first": part.first,
        "features": part.features,
    }
    return {name: np.ascontiguousarray(array) for name, array in found.items() if array is not None}


def _part(arrays: Mapping[str, Array], names: Mapping[str, Any]) -> ClipScores:
    means = VideoScores(
        video_id=tuple(names["videos"]),
        class_id=arrays["class_id"],
        probabilities=arrays["means"],
        classes=tuple(names["classes"]),
        labels=arrays.get("labels"),
    )
    return ClipScores(means, arrays["clips"], arrays["first"], arrays.get("features"))

"""What `clips_process.py` and its child say to each other: pickled, since each is the other's parent or child."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from essp_common.job.position import Position
from essp_engine.video.colour import Colour

SLOTS = 4
"""Batches in memory that both have: one that is being written, one that is being sent, and some that are ready."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the child, once, after `sys.path`: which clips. Then come the numbers of slots that are free again."""

    source: bytes
    """An `OwnSource`, pickled: what is wrong with it, the child can say once it is there."""
    plan: int
    """Digest of the phases: the child reads the catalog again, which may be another one by now."""
    consumer: str
    start: Position
    log_level: int


@dataclass(frozen=True, slots=True)
class Given:
    """From the child: a batch. In place of one comes the number of a phase that is over, `Begun`, `Said` or `Over`."""

    slot: int | None
    """Where its frames lie; None: it has none."""
    shape: tuple[int, ...]
    dtype: str
    phase_index: int
    begin: int
    stop: int
    clips: tuple[bytes, ...]
    """`ClipRef`, of those that were skipped, too."""
    skipped: tuple[str, ...]
    colours: tuple[Colour, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """From the child: its job has begun, and has this folder, which the child removes unless it is killed."""

    folder: str


@dataclass(frozen=True, slots=True)
class Said:
    """From the child: a line of its log."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Over:
    """From the child, last: what has stopped it, and where."""

    error: Exception
    trace: str


class Slot:
    """Memory for a batch, which both map as far as they need it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any], grow: bool = False) -> np.ndarray[Any, Any]:
        """An array over the memory. `grow`: it becomes as large as that takes."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self._memory is None or size > len(self._memory):
            if grow:
                os.ftruncate(self.descriptor, size)
            self._memory = mmap.mmap(self.descriptor, size)
        return np.ndarray(shape, dtype, self._memory)

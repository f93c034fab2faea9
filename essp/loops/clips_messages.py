"""The messages between `clips_process.py` and its child: pickled, since the two processes trust each other."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from essp_common.job.position import Position
from essp_engine.video.colour import Colour

SLOTS = 4
"""Batches in shared memory: one that is being written, one that is being sent, and some that are ready."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the child, once, after `sys.path`: which clips to send. Then come the numbers of slots that are free again."""

    source: bytes
    """An `OwnSource`, pickled by itself, so that the child can report an error of unpickling it."""
    plan: int
    """Digest of the phases: the child reads the catalog again, which may have changed meanwhile."""
    consumer: str
    start: Position
    log_level: int


@dataclass(frozen=True, slots=True)
class Given:
    """From the child: a batch. Other messages of the child: the number of a phase that is over, `Begun`, `Said`,
    `Over`."""

    slot: int | None
    """The slot with its frames; None: the batch has no frames."""
    shapes: tuple[tuple[int, ...], ...]
    """Of each clip; they lie one after the other."""
    dtype: str
    phase_index: int
    begin: int
    stop: int
    clips: tuple[bytes, ...]
    """`ClipRef`s, also of skipped clips."""
    skipped: tuple[str, ...]
    colours: tuple[Colour, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """From the child: its job has begun in this folder, which the child removes unless it is killed."""

    folder: str


@dataclass(frozen=True, slots=True)
class Said:
    """From the child: a log record."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Over:
    """From the child, last: the error that stopped it, and the traceback."""

    error: Exception
    trace: str


class Slot:
    """Shared memory for a batch; each process maps as much of it as it needs."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory: mmap.mmap | None = None

    def arrays(
        self, shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any], grow: bool = False
    ) -> list[np.ndarray[Any, Any]]:
        """Arrays in the memory, one after the other. `grow`: enlarge the memory if they need it."""
        ends = np.cumsum([math.prod(shape) * dtype.itemsize for shape in shapes]).tolist()
        if self._memory is None or ends[-1] > len(self._memory):
            if grow:
                os.ftruncate(self.descriptor, ends[-1])
            self._memory = mmap.mmap(self.descriptor, ends[-1])
        begins = [0, *ends[:-1]]
        return [np.ndarray(shape, dtype, self._memory, begin) for shape, begin in zip(shapes, begins, strict=True)]

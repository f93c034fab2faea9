"""What `clips_process.py` and its child say to each other: pickled, since each is the other's parent or child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from essp_common.colour import Colour
from essp_common.planning.position import Position

if TYPE_CHECKING:
    from essp.loops.source import OwnSource

SLOTS = 4
"""Batches in memory that both have: one that is being written, one that is being sent, and some that are ready."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """To the child, once, after `sys.path`: which clips. Then come the numbers of slots that are free again."""

    source: OwnSource
    consumer: str
    start: Position
    log_level: int


@dataclass(frozen=True, slots=True)
class Given:
    """From the child: a batch. In place of one comes the number of a phase that is over, `Said` or `Over`."""

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
class Said:
    """From the child: a line of its log."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Over:
    """From the child, last: what has stopped it."""

    error: BaseException

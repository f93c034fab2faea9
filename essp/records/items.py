"""What a source of records provides: a sequence of images with their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from essp_common.records.chunk import Record


@dataclass(frozen=True, slots=True)
class Box:
    """Part of an image, in pixels; `top` and `left` are inclusive, `bottom` and `right` exclusive."""

    top: int
    left: int
    bottom: int
    right: int
    image: tuple[int, int] | None = None
    """Height and width that the image must have; None: any."""


@dataclass(frozen=True, slots=True)
class Item:
    """One record of a source."""

    name: str
    label: str
    """Empty if it has no label."""
    read: Callable[[], bytes | Record]
    """Reads its file, or makes the record itself. Raises `PermanentError` if it cannot be used. Consecutive items
    with the same function are parts of one file, which is read and decoded once."""
    box: Box | None = None
    """None: the whole image."""


@dataclass(frozen=True, slots=True)
class Source:
    """Images and their labels."""

    recognised: str
    """The format that was recognised, and why."""
    items: tuple[Item, ...]
    ignored: Counter[str] = field(default_factory=Counter)
    """Number of files that are not images, for each suffix."""
    classes: tuple[str, ...] = ()
    """In the order given by the source; empty: sorted by name."""
    problems: dict[str, str] = field(default_factory=dict)
    """Records that are left out because of errors in the source -> the reason."""
    unit: str = "image"
    """The word for a record in messages."""
    cut: bool = False
    """Whether its images are parts of something else, so there are no image files to keep."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All classes, in order."""
        return self.classes or tuple(sorted({item.label for item in self.items if item.label}))

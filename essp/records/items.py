"""What a source of records gives: images with their labels, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from essp_common.records.chunk import Record


@dataclass(frozen=True, slots=True)
class Box:
    """Part of an image, in pixels: `top` and `left` belong to it, `bottom` and `right` do not."""

    top: int
    left: int
    bottom: int
    right: int
    image: tuple[int, int] | None = None
    """Height and width that the image has to have; None: any."""


@dataclass(frozen=True, slots=True)
class Item:
    """One record of a source."""

    name: str
    label: str
    """Empty: it has none."""
    read: Callable[[], bytes | Record]
    """Its file, or the record itself. Raises `BadFrames` and `NotFound`. Items that follow one another and have the
    same one are parts of one file, which is read and decoded once."""
    box: Box | None = None
    """None: the whole image."""


@dataclass(frozen=True, slots=True)
class Source:
    """Images and their labels."""

    recognised: str
    """What it was taken for, and why."""
    items: tuple[Item, ...]
    ignored: Counter[str] = field(default_factory=Counter)
    """Files that are no images by their name: how many of each suffix."""
    classes: tuple[str, ...] = ()
    """In the order that the source gives them; empty: by name."""
    problems: dict[str, str] = field(default_factory=dict)
    """What the source says wrongly or in vain of a record -> why it is left out."""
    unit: str = "image"
    """What a record is."""
    cut: bool = False
    """Its images are parts of something, so they have no files that could be kept."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All classes, in order."""
        return self.classes or tuple(sorted({item.label for item in self.items if item.label}))

"""Views to plan on, and how even a draw is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.view import CatalogView

T = TypeVar("T")


def row(name: str, frames: int = 100, first: int = 0, error: str | None = None) -> VideoRow:
    """A video `class/file`, from frame `first` on."""
    return VideoRow(
        name,
        f"file:///{name}",
        name.partition("/")[0],
        "train",
        1,
        "e",
        frame_count=first + frames,
        first_frame=first,
        last_frame=first + frames - 1,
        error=error,
    )


def view_of(lengths: dict[str, list[int]]) -> CatalogView:
    """A view with videos of these lengths in each class."""
    rows = [
        row(f"{name}/{i:04}", frames) for name, all_frames in lengths.items() for i, frames in enumerate(all_frames)
    ]
    return Catalog(tuple(rows)).view("train")


def chi_square(counts: Counter[T], cells: Collection[T], draws: int) -> float:
    assert set(counts) <= set(cells)
    expected = draws / len(cells)
    return sum((counts[cell] - expected) ** 2 / expected for cell in cells)

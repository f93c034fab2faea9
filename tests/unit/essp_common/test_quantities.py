"""Numbers as people read them."""

from __future__ import annotations

import pytest

from essp_common.quantities import counted, duration


@pytest.mark.parametrize(
    ("count", "thing", "text"),
    [
        (1, "file", "1 file"),
        (0, "file", "0 files"),
        (1024, "file", "1,024 files"),
        (2, "box", "2 boxes"),
        (1, "class", "1 class"),
        (12, "class", "12 classes"),
        (2, "batch", "2 batches"),
        (3, "epoch", "3 epochs"),
        (1, "entry", "1 entry"),
        (0, "entry", "0 entries"),
        (4, "way", "4 ways"),
    ],
)
def test_things_are_counted_in_the_plural(count: int, thing: str, text: str) -> None:
    assert counted(count, thing) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (245, "4 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3725, "1 h 02 min"),
    ],
)
def test_times_are_told_in_units_that_fit(seconds: float, text: str) -> None:
    assert duration(seconds) == text

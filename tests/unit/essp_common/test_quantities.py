"""Numbers as people read them."""

from __future__ import annotations

import pytest

from essp_common.quantities import counted, duration, percent


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


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (None, 1, "–"),
        (0, 1, "0.0 %"),
        (0.1234, 1, "12.3 %"),
        (0.9994, 1, "99.9 %"),
        (0.9996, 1, "99.9 %"),
        ((10**9 - 1) / 10**9, 1, "99.9 %"),
        (0.996, 0, "99 %"),
        (0.99996, 2, "99.99 %"),
        (1, 1, "100.0 %"),
        (sum([1 / 7] * 7), 0, "100 %"),
        (1.25, 0, "125 %"),
        (float("nan"), 1, "nan %"),
    ],
)
def test_all_is_said_of_all_alone(share: float | None, digits: int, text: str) -> None:
    assert percent(share, digits) == text

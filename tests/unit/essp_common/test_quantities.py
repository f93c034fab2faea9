"""Numbers as people read them."""

from __future__ import annotations

import pytest

from essp_common.quantities import counted, duration, parse_bytes, percent, size


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


@pytest.mark.parametrize("count", [0, 1, 2**10, 3 * 2**20, 256 * 2**20, 2**30, 2**40, 15 * 2**40])
def test_sizes_are_read_as_they_are_shown(count: int) -> None:
    assert parse_bytes(size(count)) == count
    assert parse_bytes(str(count)) == count


@pytest.mark.parametrize(
    ("text", "count"), [("1.5kb", 1500), ("2 MB", 2 * 10**6), ("4GB", 4 * 10**9), ("2TB", 2 * 10**12), ("7 B", 7)]
)
def test_sizes_may_be_decimal(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "much", "-1", "1e9", "2PB", "2T", "1.2.3MB", "MiB", "1" * 21])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)

"""Numbers as people read them."""

from __future__ import annotations

import pytest

from essp_common.quantities import counted


@pytest.mark.parametrize(
    ("count", "thing", "text"),
    [
        (1, "file", "1 file"),
        (0, "file", "0 files"),
        (1024, "file", "1,024 files"),
        (2, "box", "2 boxes"),
        (1, "class", "1 class"),
        (12, "class", "12 classes"),
    ],
)
def test_things_are_counted_in_the_plural(count: int, thing: str, text: str) -> None:
    assert counted(count, thing) == text

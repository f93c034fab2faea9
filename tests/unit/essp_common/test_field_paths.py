"""Places of fields: what is written is read back, whatever the names are."""

from __future__ import annotations

import pytest

from essp_common.field_paths import joined, parts_of


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["epochs"], "epochs"),
        (["trainers", "rgb-1", "optimizer", "lr"], "trainers.rgb-1.optimizer.lr"),
        (["layers", "layer1.0"], 'layers."layer1.0"'),
        (["layers", ""], 'layers.""'),
        (["class_weights", "jump rope", "a=b", 'say "x"', "a\\b", "\n"], None),
        (["left_out", "Köln", "\x00", "\u2028", "a: b"], None),
    ],
)
def test_what_is_written_is_read_back(names: list[str], written: str | None) -> None:
    place = joined(names)
    assert parts_of(place) == tuple(names)
    assert "\n" not in place
    assert written in (None, place)


@pytest.mark.parametrize(
    "place", ["", ".", "a.", ".a", "a..b", 'a"b', '"a', 'a."b"c', '"\\q"', '"\\ud800"', "\udcff", "a b"]
)
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="is not the path of a field"):
        parts_of(place)

"""Names of any length and script can be read in pictures, or are called by a number."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.image import imread

from essp.report import plots
from essp.report.lettering import fonts_for, lettering, shortened
from essp.report.plots import LIGHT

GYMNASTICS, DANCE = "体操", "舞"
FILE = "mpl-data/fonts/written-here.ttf"
"""matplotlib keeps it open, like those of its own folder of this name."""
WALKS = "a video of somebody who walks " * 5


@pytest.fixture(autouse=True)
def only_fonts_of_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is installed here."""
    own = str(Path(findfont(FontProperties())).parent)
    monkeypatch.setattr(fontManager, "ttflist", [font for font in fontManager.ttflist if font.fname.startswith(own)])


@pytest.fixture
def chinese(tmp_path: Path, only_fonts_of_matplotlib: None) -> str:
    """A font whose only letters are those of `GYMNASTICS`, no matter what they look like."""
    font = TTFont(findfont(FontProperties()))
    for table in font["cmap"].tables:
        table.cmap = {ord(letter): "A" for letter in GYMNASTICS}
    for name in font["name"].names:
        name.string = "Written Here"
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    font.save(file)
    fontManager.addfont(file)
    return "Written Here"


def drawn(classes: tuple[str, ...]) -> np.ndarray:
    """A confusion matrix; what matplotlib warns of, as a letter that no font has, is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = plots.confusion(np.eye(len(classes), dtype=np.int64), lettering(classes).names, LIGHT)
    return np.asarray(imread(io.BytesIO(picture)))


def test_of_a_long_name_the_middle_is_left_out() -> None:
    assert shortened("walks\n to  and\tfro\x07") == "walks to and fro"
    assert shortened("x" * 32) == "x" * 32
    assert shortened("0123456789abcdef", 9) == "0123…cdef"
    assert shortened(GYMNASTICS * 5, 11) == "体操…体操", "each is as wide as two"
    accents = "a\u0301b"
    assert shortened(accents * 9, 8) == f"{accents * 2}…b{accents}", "they have no width, and stay with their letters"


def test_a_confusion_matrix_of_long_names_is_no_larger_than_it_is_of_names_with_room() -> None:
    long, short = drawn((f"{WALKS}0", f"{WALKS}1")), drawn(("x" * 32, "x" * 31))
    assert np.abs(np.subtract(long.shape, short.shape)).max() < 120


def test_long_names_that_would_look_alike_have_their_number() -> None:
    found = lettering((f"{WALKS}to{WALKS}", "runs", f"{WALKS}from{WALKS}"))
    assert found.numbered == (0, 2)
    assert [name[:9] for name in found.names] == ["#0 a vide", "runs", "#2 a vide"]
    assert lettering((f"{WALKS}0", f"{WALKS}1")).numbered == ()


def test_letters_that_no_font_has_become_a_number() -> None:
    found = lettering(("jump", GYMNASTICS, "прыжок", "\u2060jump\ufe0f", DANCE))
    assert found.names == ("jump", "#1", "прыжок", "\u2060jump\ufe0f", "#4")
    assert found.numbered == (1, 4)
    assert drawn(("jump", GYMNASTICS)).std() > 0


def test_letters_are_taken_from_the_font_that_has_them(chinese: str) -> None:
    classes = ("jump", GYMNASTICS, DANCE)
    assert lettering(classes).names == ("jump", GYMNASTICS, "#2")
    assert fonts_for(classes).families[-1] == chinese
    assert fonts_for(["jump"]).families[-1] != chinese
    assert drawn(classes).std() > 0


def test_a_font_that_was_removed_is_passed_over(chinese: str, tmp_path: Path) -> None:
    (tmp_path / FILE).unlink()
    assert lettering((GYMNASTICS,)).names == ("#0",)

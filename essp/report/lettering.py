"""How names are written in pictures. They come from file names, so they may be of any length and in any script.

A name that has no room loses its middle. Letters that matplotlib's own font lacks are taken from another font of this
machine, where one has them. Where none has, there would be nothing but boxes: a class then has its number instead, and
so it has where its name would look like another one; the page says which class that is.

Letters are joined and run from right to left, where their script wants it, from matplotlib 3.11 on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from unicodedata import category, combining, east_asian_width

import numpy as np
from matplotlib import rcParams
from matplotlib.font_manager import FontProperties, findfont, fontManager
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray

_MOST = 32
"""Columns of a name beside an axis."""
_ELLIPSIS = "…"
_LAST_RESORT = "Last Resort"
"""A font that comes with matplotlib and has a box for every letter."""
_UNSEEN = ("Cc", "Cf", "Cs", "Zs")
"""Categories of characters that have nothing to be drawn."""
_SELECTORS = range(0xFE00, 0xFE10)
"""Variation selectors: they say how the character before them looks, and are not drawn themselves."""


@dataclass(frozen=True, slots=True)
class Lettering:
    """The names of classes, as pictures have them."""

    names: tuple[str, ...]
    numbered: tuple[int, ...]
    """The classes that are called by their numbers."""


@dataclass(frozen=True, slots=True)
class Fonts:
    """What a text is written with."""

    families: tuple[str, ...]
    """matplotlib's own, and as few others as have what it lacks."""
    lacking: frozenset[int]
    """The code points that no font has."""

    def draw(self, text: str) -> bool:
        """Whether they have all letters of a text, which is one of those that they were chosen for."""
        return self.lacking.isdisjoint(_letters(text))


def lettering(classes: Sequence[str]) -> Lettering:
    """How these classes are to be called in pictures."""
    short = [shortened(name) for name in classes]
    fonts, count = fonts_for(short), Counter(short)
    names, numbered = [], []
    for number, name in enumerate(short):
        if not fonts.draw(name):
            names.append(f"#{number}")
        elif count[name] > 1:
            names.append(shortened(f"#{number} {name}"))
        else:
            names.append(name)
            continue
        numbered.append(number)
    return Lettering(tuple(names), tuple(numbered))


def shortened(text: str, most: int = _MOST) -> str:
    """The text on one line of at most so many columns, of which Chinese characters and their like take two; of a longer
    one the middle is left out."""
    line = "".join(character for character in " ".join(text.split()) if category(character) not in ("Cc", "Cs"))
    if sum(map(_columns, line)) <= most:
        return line
    room = most - len(_ELLIPSIS)
    head, tail = _fitting(line, room - room // 2), _fitting(line[::-1], room // 2)[::-1]
    while tail and not _columns(tail[0]):
        tail = tail[1:]  # an accent whose letter is left out
    return head + _ELLIPSIS + tail


def fonts_for(texts: Iterable[str]) -> Fonts:
    """The fonts that these texts take together."""
    own = tuple(rcParams["font.family"])
    letters = np.array(sorted(set().union(*map(_letters, texts))), np.uint32)
    lacking = letters[~np.isin(letters, _drawn_by(findfont(FontProperties())))]
    if not len(lacking):
        return Fonts(own, frozenset())
    offered = {family: np.isin(lacking, _drawn_by(path)) for family, path in _others().items()}
    chosen: list[str] = []
    missing = np.ones(len(lacking), bool)
    while offered and missing.any():
        best = max(offered, key=lambda family: np.count_nonzero(offered[family] & missing))
        has = offered.pop(best)
        if not (has & missing).any():
            break
        chosen.append(best)
        missing &= ~has
    return Fonts((*own, *chosen), frozenset(lacking[missing].tolist()))


def _columns(character: str) -> int:
    return 0 if combining(character) else 1 + (east_asian_width(character) in "WF")


def _fitting(text: str, room: int) -> str:
    """As much of the beginning as there is room for."""
    end = used = 0
    while end < len(text) and (used := used + _columns(text[end])) <= room:
        end += 1
    return text[:end]


def _letters(text: str) -> set[int]:
    """The code points of a text that need a glyph."""
    found = {ord(character) for character in text if category(character) not in _UNSEEN}
    return found.difference(_SELECTORS)


def _others() -> dict[str, str]:
    """Family -> file of its regular face, of all fonts that matplotlib finds."""
    upright = sorted(
        (font for font in fontManager.ttflist if font.style == "normal" and not font.name.startswith(_LAST_RESORT)),
        key=lambda font: (font.name, font.weight != 400, font.fname),
    )
    return {font.name: font.fname for font in reversed(upright)}


@cache
def _drawn_by(path: str) -> NDArray[np.uint32]:
    """The code points that a font has; none if its file is gone or is no font any more."""
    try:
        return np.fromiter(FT2Font(path).get_charmap(), np.uint32)
    except (OSError, RuntimeError):
        return np.empty(0, np.uint32)

"""Prepares names for pictures. They come from file names, so they may have any length and any script.

Long names are shortened in the middle. Letters missing from matplotlib's own font are taken from another font of this
machine, if one has them. If no font does, the name would only be boxes, so the class is shown as its number. The number
is also shown for names that would look alike. The page lists the numbered classes.

Letters are joined and run from right to left, as their script requires, from matplotlib 3.11 on.
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
"""Maximum number of columns of a name next to an axis."""
_ELLIPSIS = "…"
_LAST_RESORT = "Last Resort"
"""A font of matplotlib that has a box for every letter."""
_UNSEEN = ("Cc", "Cf", "Cs", "Zs")
"""Categories of characters that are not drawn."""
_SELECTORS = range(0xFE00, 0xFE10)
"""Variation selectors, which change how the previous character looks and are not drawn themselves."""


@dataclass(frozen=True, slots=True)
class Lettering:
    """The names of classes for pictures."""

    names: tuple[str, ...]
    numbered: tuple[int, ...]
    """The classes that are shown by number."""


@dataclass(frozen=True, slots=True)
class Fonts:
    """The fonts for a text."""

    families: tuple[str, ...]
    """matplotlib's own font, and the fewest others that provide the missing letters."""
    lacking: frozenset[int]
    """The code points that no font has."""

    def draw(self, text: str) -> bool:
        """Whether the fonts have all letters of a text. It must be one of the texts for which they were chosen."""
        return self.lacking.isdisjoint(_letters(text))


def lettering(classes: Sequence[str]) -> Lettering:
    """The names of these classes for pictures."""
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
    """The text on one line with at most `most` columns, shortened in the middle if necessary. Wide characters, such as
    Chinese ones, take two columns."""
    line = "".join(character for character in " ".join(text.split()) if category(character) not in ("Cc", "Cs"))
    if sum(map(_columns, line)) <= most:
        return line
    room = most - len(_ELLIPSIS)
    head, tail = _fitting(line, room - room // 2), _fitting(line[::-1], room // 2)[::-1]
    while tail and not _columns(tail[0]):
        tail = tail[1:]  # an accent without its letter
    return head + _ELLIPSIS + tail


def fonts_for(texts: Iterable[str]) -> Fonts:
    """The fonts that these texts need together."""
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
    """The longest beginning that fits."""
    end = used = 0
    while end < len(text) and (used := used + _columns(text[end])) <= room:
        end += 1
    return text[:end]


def _letters(text: str) -> set[int]:
    """The code points of a text that need a glyph."""
    found = {ord(character) for character in text if category(character) not in _UNSEEN}
    return found.difference(_SELECTORS)


def _others() -> dict[str, str]:
    """Family -> file of its regular face, for all fonts that matplotlib finds."""
    upright = sorted(
        (font for font in fontManager.ttflist if font.style == "normal" and not font.name.startswith(_LAST_RESORT)),
        key=lambda font: (font.name, font.weight != 400, font.fname),
    )
    return {font.name: font.fname for font in reversed(upright)}


@cache
def _drawn_by(path: str) -> NDArray[np.uint32]:
    """The code points that a font has; none if its file is missing or damaged."""
    try:
        return np.fromiter(FT2Font(path).get_charmap(), np.uint32)
    except (OSError, RuntimeError):
        return np.empty(0, np.uint32)

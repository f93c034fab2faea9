"""The path of a field in a document, as users write it and messages show it: `trainers.rgb.optimizer.lr`.

Names are joined by dots. A name that contains dots, or would be ambiguous before `=VALUE`, is written in double quotes,
as a JSON string: `trainers.rgb.optimizer.layers."layer1.0"`. `parts_of` parses what `joined` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_HALVES = "\ud800-\udfff"
"""Surrogates: messages cannot carry them."""
_BARE = rf'[^\s".=:{_HALVES}]+'
_ESCAPE = r'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
_NAME = rf'(?:"(?:[^"\\\x00-\x1f{_HALVES}]|{_ESCAPE})*"|{_BARE})'
PATH = rf"{_NAME}(?:\.{_NAME})*"
"""Matches the path of a field."""


def joined(names: Iterable[object]) -> str:
    """The path with these names, from the outermost to the innermost."""
    return ".".join(
        text if re.fullmatch(_BARE, text := str(name)) else json.dumps(text, ensure_ascii=False) for name in names
    )


def parts_of(path: str) -> tuple[str, ...]:
    """The names in the path of a field. Raises `ValueError` if it is not such a path."""
    if not re.fullmatch(PATH, path):
        raise ValueError(
            f"{path!r} is not the path of a field: separate names by dots, and put names with dots in double quotes"
        )
    return tuple(json.loads(name) if name.startswith('"') else name for name in re.findall(_NAME, path))

"""Entries of a local folder that the listing of a store omits: names that cannot be keys, broken links, and class
folders without files.

A store lists objects, so these would be lost without a message. Only local folders have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from essp_common.objects.keys import is_hidden, is_key, stem_and_suffix


@dataclass(slots=True)
class LeftOut:
    """The omitted entries of a folder and its subfolders."""

    problems: dict[str, str] = field(default_factory=dict)
    """Printable names of unusable files -> the reason."""
    empty: list[str] = field(default_factory=list)
    """Empty folders, as paths relative to the source."""


def left_out(uri: str, suffixes: frozenset[str]) -> LeftOut:
    """Search the folder at a `file://` URI; the result is empty for other URIs. Files with other suffixes are
    ignored."""
    found = LeftOut()
    if uri.startswith("file://"):
        _look(uri.removeprefix("file://"), "", suffixes, found, ())
    return found


def _look(root: str, base: str, suffixes: frozenset[str], found: LeftOut, above: tuple[str, ...]) -> None:
    path = os.path.join(root, base)
    real = os.path.realpath(path)
    if real in above:
        return
    empty = True
    for entry in _entries(path):
        empty = False
        name = os.path.join(base, entry.name)
        if _is_folder(entry):
            _look(root, name, suffixes, found, (*above, real))
        elif stem_and_suffix(entry.name)[1].lower() in suffixes and (error := _problem(entry, name)):
            found.problems[_printable(name)] = error
    if base and empty:
        found.empty.append(_printable(base))


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        yield from (entry for entry in os.scandir(path) if not is_hidden(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _problem(entry: os.DirEntry[str], name: str) -> str | None:
    if not is_key(name):
        return "name: has control characters or is not UTF-8; rename it, or the folder it is in"
    try:
        if entry.is_file():
            return None
    except OSError:
        return "missing: a link that leads to itself"
    return "missing: a link that leads nowhere" if entry.is_symlink() else "not_video: not a regular file"


def _printable(name: str) -> str:
    """The name with unprintable characters escaped."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)

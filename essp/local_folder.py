"""What a local folder holds that the listing of a store leaves out: names that no key can have, links that lead
nowhere, and class folders without a file.

A store lists objects, so these would vanish without a word. Only folders of this machine have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from essp_common.objects.keys import is_hidden, is_key


@dataclass(slots=True)
class LeftOut:
    """Of one folder and those below it."""

    problems: dict[str, str] = field(default_factory=dict)
    """Files that cannot be used, by their names as they can be printed -> the reason."""
    empty: list[str] = field(default_factory=list)
    """Folders without anything in them, as paths below the source."""


def left_out(uri: str, suffixes: frozenset[str]) -> LeftOut:
    """Look through the folder at a `file://` URI; of any other URI nothing is said. Files with other suffixes do not
    count."""
    found = LeftOut()
    if uri.startswith("file://"):
        _look(uri.removeprefix("file://"), "", suffixes, found, ())
    return found


def _look(root: str, base: str, suffixes: frozenset[str], found: LeftOut, above: tuple[str, ...]) -> None:
    path = os.path.join(root, base)
    real = os.path.realpath(path)
    if real in above:
        return
    entries = list(_entries(path))
    if base and not entries:
        found.empty.append(_printable(base))
    for entry in entries:
        name = os.path.join(base, entry.name)
        if _is_folder(entry):
            _look(root, name, suffixes, found, (*above, real))
        elif PurePosixPath(entry.name).suffix.lower() in suffixes and (error := _problem(entry, name)):
            found.problems[_printable(name)] = error


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        yield from sorted((e for e in os.scandir(path) if not is_hidden(e.name)), key=lambda e: e.name)
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
    """The name with what cannot be printed as escapes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)

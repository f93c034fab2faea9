"""Valid keys: relative paths that cannot leave the store's root, the same for every adapter. Also: files that never
belong to a data set, whichever folder they are in.
"""

from __future__ import annotations

import re

from essp_common.errors import NotFound

_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and Python's representation of file names that are not UTF-8: no message could carry them."""
_MISLEADING = re.compile(r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""These, and characters that change the reading order of the following text: a label could look like another one. In a
file name they are odd but harmless."""
_BESIDE = frozenset(
    ("__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found")
)  # fmt: skip
"""Folders that systems add to users' folders: macOS, Synology, Windows and Linux."""


def is_key(key: str) -> bool:
    """Whether the parts between `/` are neither empty nor `.` nor `..`, in UTF-8 and without control characters."""
    return not _UNUSABLE.search(key) and all(part not in ("", ".", "..") for part in key.split("/"))


def is_hidden(key: str) -> bool:
    """Whether a file, or a folder around it, is hidden, such as macOS's `._clip.mp4`, or added by the system."""
    parts = key.split("/")
    return any((part.startswith(".") and part not in (".", "..")) or part.lower() in _BESIDE for part in parts)


def stem_and_suffix(key: str) -> tuple[str, str]:
    """The name of an object in two parts, such as `("a.b", ".mp4")`: those of `pathlib`, which takes seven times
    as long."""
    name = key.rpartition("/")[2]
    stem, point, suffix = name.rpartition(".")
    return (stem, f"{point}{suffix}") if stem and suffix else (name, "")


def is_plain(label: str) -> bool:
    """Whether a label is shown as it is stored: each character is visible, in order."""
    return not _MISLEADING.search(label)


def escaped(text: str) -> str:
    """Return the text with escapes for characters that no message can carry."""
    return _UNUSABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def checked(key: str) -> str:
    """Return `key`. Raises `NotFound` if no object can have such a name, for reading as well as writing."""
    if not is_key(key):
        raise NotFound(
            f"{key!r} cannot be the key of an object: use parts like a/b/c, without leading / and without .."
        )
    return key

"""What may be a key: a relative path that cannot leave the store's root, the same for every adapter. And what is no
part of a data set, whoever's folder it lies in.
"""

from __future__ import annotations

import re

from essp_common.errors import NotFound

_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and what Python makes of file names that are not UTF-8: no message could carry them."""
_MISLEADING = re.compile(r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""These, and what has the text after it read in another order than it stands in: a label could look like another one.
In the name of a file it is odd and does no harm."""
_BESIDE = frozenset(
    ("__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found")
)  # fmt: skip
"""Folders that systems add to those of users: of macOS, Synology, Windows and Linux."""


def is_key(key: str) -> bool:
    """Parts between `/` that are neither empty nor `.` nor `..`, in UTF-8 and without control characters."""
    return not _UNUSABLE.search(key) and all(part not in ("", ".", "..") for part in key.split("/"))


def is_hidden(key: str) -> bool:
    """Whether a file, or a folder that it lies in, is one that systems do not show, as macOS's `._clip.mp4`, or add."""
    parts = key.split("/")
    return any((part.startswith(".") and part not in (".", "..")) or part.lower() in _BESIDE for part in parts)


def is_plain(label: str) -> bool:
    """Whether a label reads as it is: each character is shown, and where it stands."""
    return not _MISLEADING.search(label)


def escaped(text: str) -> str:
    """The text with escapes for what no message can carry; the text itself, if it may be in one."""
    return _UNUSABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def checked(key: str) -> str:
    """`key` itself. Raises `NotFound`: no object can have such a name, whether it is to be read or written."""
    if not is_key(key):
        raise NotFound(
            f"{key!r} cannot be the key of an object: use parts like a/b/c, without leading / and without .."
        )
    return key

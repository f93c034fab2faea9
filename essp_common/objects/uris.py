"""URIs that users write: normalised and checked before anything is opened, read or written.

    s3://bucket/runs/first        file:///data/catalog.parquet

A URI here is a root and a key, not a link: it has a scheme, for S3 a bucket, and parts between `/`. The checked form is
the one that is used, so nothing in it may be interpreted differently later: no query and no fragment (only the operator
says in ESSP_STORES which server has a bucket), no parts that are empty, `.` or `..`, no percent-encoding, no
backslashes, no control characters. One trailing `/` is dropped, and the scheme is written in lower case.

We do not choose the names in a data set: `what is this? 100%41 #2.mp4` is a file. So `?`, `#`, `%` and backslashes are
accepted in the URI of a video, where they are ordinary characters of the key.

Whether a URI is within a configured store is checked afterwards, by whole parts (`Place.below`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from essp_common.errors import ConfigError
from essp_common.objects.keys import is_key
from essp_common.runtime.addresses import shown_address, shown_uri

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_MOST_CHARACTERS = 1024
"""S3 allows keys of 1,024 bytes, file systems paths of about four times that."""
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_LATE_CONTROLS = re.compile(r"[\x80-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Place:
    """The location that a URI points to."""

    scheme: str
    authority: str
    """The bucket; empty for files."""
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join((self.authority, *self.parts))}{'' if self.parts else '/'}"

    def below(self, root: Place) -> str | None:
        """Return the key of this location in a store with that root; empty for the root itself, None if it is
        elsewhere."""
        if (self.scheme, self.authority) != (root.scheme, root.authority):
            return None
        if self.parts[: len(root.parts)] != root.parts:
            return None
        return "/".join(self.parts[len(root.parts) :])


def place_of(uri: str, video: bool = False) -> Place:
    """Parse a URI. `video`: it names videos, so it may contain any character.

    Raises `ConfigError`, which says what is wrong with it.
    """
    scheme, colon, rest = uri.partition("://")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise ConfigError(f"{_shown(uri)} is not a URI; write for example s3://bucket/folder or file:///data/folder")
    if len(uri) > _MOST_CHARACTERS:
        raise ConfigError(f"{_shown(uri)} has {len(uri)} characters; a URI may have {_MOST_CHARACTERS}", code="range")
    if not video and (problem := _unplain(rest)):
        raise ConfigError(f"{_shown(shown_address(uri))} {problem}")
    authority, *parts = rest.removesuffix("/").split("/")
    if not is_key("/".join((authority or "-", *parts))):
        wrong = "a part that is empty, `.` or `..`, or one that is not UTF-8 or has a control character in it"
        raise ConfigError(f"{_shown(uri)} has {wrong}")
    return Place(scheme.lower(), authority, tuple(parts))


def checked_uri(text: str) -> str:
    """Return a URI in its normal form; a text without a scheme is returned unchanged. Raises `ValueError`, like
    validators."""
    if "://" not in text:
        return text
    try:
        return str(place_of(text))
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _unplain(rest: str) -> str:
    """Return what makes this more than a root and a key."""
    if "?" in rest or "#" in rest:
        return "has a `?` or `#` in it: which server a store is on stands in ESSP_STORES, not here; leave it out"
    if _ENCODED.search(rest):
        return "is percent-encoded; write the characters themselves"
    if "\\" in rest:
        return "has a backslash in it; parts are separated by `/`"
    if _LATE_CONTROLS.search(rest):
        return "has a control character in it"
    return ""


def _shown(uri: str) -> str:
    uri = shown_uri(uri)
    return repr(uri if len(uri) <= 200 else uri[:200] + "...")

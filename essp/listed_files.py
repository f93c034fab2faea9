"""Files named in a user's own list: the names of its columns, and names as other systems write them, with Windows
separators or the decomposed letters of macOS."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from essp.uris import listed_uri
from essp_common.errors import NotFound
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

PATH_COLUMNS = ("path", "file", "video", "file_name", "filename", "file_path", "filepath", "video_path", "clip")
"""The columns that may name the file in a user's own list, the first of them that it has."""
LABEL_COLUMNS = ("label", "class")
"""The columns that may name its class."""

T = TypeVar("T")


def asked(uri: str, stores: Stores, ask: Callable[[ObjectStore, str], T]) -> tuple[str, T]:
    """The URI of a file and the answer of its store. Raises `NotFound`.

    If there is no such file, the forms that other systems would use for its name are tried.
    """
    missing: NotFound | None = None
    for form in dict.fromkeys((uri, *(form(uri) for form in FORMS))):
        try:
            return form, ask(*stores.resolve(form, video=True))
        except NotFound as error:
            missing = missing or error
    raise missing or NotFound(uri)


def of_windows(path: str) -> str:
    """A path or URI with Windows separators, rewritten with `/`."""
    scheme, mark, place = path.rpartition("://")
    return f"{scheme}{mark}{posixpath.normpath(place.replace(chr(92), '/'))}" if "\\" in place else path


def one_name(path: str, folder: str) -> str:
    """A canonical form of a file name in a list located in `folder`: the same with Windows or POSIX separators, as
    `./a` or `a`, with composed or decomposed letters."""
    return unicodedata.normalize("NFC", listed_uri(of_windows(path), folder))


FORMS: Sequence[Callable[[str], str]] = (
    partial(unicodedata.normalize, "NFC"),
    partial(unicodedata.normalize, "NFD"),
    of_windows,
)
"""How other systems write the name of a file: macOS decomposes letters, `é` into `e` and its accent."""

"""Files that a list of one's own names: how its columns are called, and how other systems write names, with separators
of Windows or letters of macOS."""

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

PATH_COLUMNS = ("path", "file", "video", "file_name")
"""Those that name the file in a CSV list of one's own; the last one is that of Hugging Face's `metadata.csv`."""
LABEL_COLUMNS = ("label", "class")
"""Those that name its class."""

T = TypeVar("T")


def asked(uri: str, stores: Stores, ask: Callable[[ObjectStore, str], T]) -> tuple[str, T]:
    """The URI of a file and what its store answers. Raises `NotFound`.

    Where there is no such file, one whose name another system would write in this way is meant.
    """
    missing: NotFound | None = None
    for form in dict.fromkeys((uri, *(form(uri) for form in FORMS))):
        try:
            return form, ask(*stores.resolve(form, video=True))
        except NotFound as error:
            missing = missing or error
    raise missing or NotFound(uri)


def of_windows(path: str) -> str:
    """A path, or URI, of which what parts folders was written as Windows has it."""
    scheme, mark, place = path.rpartition("://")
    return f"{scheme}{mark}{posixpath.normpath(place.replace(chr(92), '/'))}" if "\\" in place else path


def one_name(path: str, folder: str) -> str:
    """The same for all ways to write the name of a file in a list that lies in `folder`: as Windows does or not, as
    `./a` or `a`, with letters of macOS or not."""
    return unicodedata.normalize("NFC", listed_uri(of_windows(path), folder))


FORMS: Sequence[Callable[[str], str]] = (
    partial(unicodedata.normalize, "NFC"),
    partial(unicodedata.normalize, "NFD"),
    of_windows,
)
"""Ways in which other systems write the name of a file: macOS takes letters apart, `é` as `e` and its accent."""

"""Catalogs with relative URIs: a folder with a catalog and its videos can be moved, or copied to a store.

In the file of such a catalog, the URIs of videos are relative to a base folder, and the file's metadata names the base,
relative to the folder of the catalog: empty if the videos are in it or below it, `../videos` for example if not. URIs
outside the base stay as they are. In memory all URIs are absolute: they are resolved against the place that the catalog
is read from.
"""

from __future__ import annotations

import posixpath
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from essp_common.errors import ConfigError

BASE_KEY = b"essp.catalog.base"
_SCHEME = "://"


def base_for(catalog: str, uris: Any, *, required: bool) -> str | None:
    """The base for a catalog at this URI, relative to its folder; None: its URIs stay absolute.

    `uris`: of the usable videos, as a pyarrow array. `required`: otherwise a base is used only if all these videos are
    in its folder or below it. Raises `ConfigError` if they have no path relative to it.
    """
    folder = _folder(catalog)
    if pc.all(pc.starts_with(uris, f"{folder}/"), min_count=0).as_py():
        return ""
    if not required:
        return None
    ends = pc.min_max(uris)  # what these two share, all between them share
    low, high = (ends[name].as_py().split("/")[:-1] for name in ("min", "max"))
    shared = "/".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False)))
    if _root(shared) != _root(folder):
        raise ConfigError(
            f"some videos are in another store than the catalog, such as {ends['max'].as_py()}; write the catalog into "
            "their store, or leave their URIs absolute",
            field="--relative",
            code="unsupported",
        )
    return posixpath.relpath(_path(shared), _path(folder))


def relative_to(catalog: str, base: str, uris: Any) -> Any:
    """The URIs as they are stored in a catalog at this URI. `uris`: a pyarrow array of strings."""
    begin = f"{_below(_folder(catalog), base)}/"
    short = pc.utf8_slice_codeunits(uris, len(begin))
    return pc.if_else(pc.starts_with(uris, begin), short, uris)


def absolute(catalog: str, base: str, uris: Any) -> Any:
    """The URIs of videos, from what is stored in a catalog at this URI. `uris`: a pyarrow array of strings."""
    begin = pa.scalar(f"{_below(_folder(catalog), base)}/", uris.type)
    whole = pc.or_(pc.match_substring(uris, _SCHEME), pc.equal(pc.binary_length(uris), 0))
    return pc.if_else(whole, uris, pc.binary_join_element_wise(begin, uris, pa.scalar("", uris.type)))


def relative_source(catalog: str, source: str) -> str:
    """What a catalog was built from, relative to the folder of the catalog if it is in the same store."""
    if _SCHEME not in source or _root(source) != _root(folder := _folder(catalog)):
        return source
    return posixpath.relpath(_path(source), _path(folder))


def absolute_source(catalog: str, source: str) -> str:
    """The inverse of `relative_source`."""
    return source if not source or _SCHEME in source else _below(_folder(catalog), source)


def _folder(catalog: str) -> str:
    return catalog.rpartition("/")[0]


def _root(uri: str) -> str:
    """Scheme and bucket; all files have the same root."""
    scheme, _, place = uri.partition(_SCHEME)
    return f"{scheme}{_SCHEME}{place.partition('/')[0]}"


def _path(uri: str) -> str:
    """The path below the root, which begins with a slash."""
    return f"/{uri.partition(_SCHEME)[2].partition('/')[2]}"


def _below(folder: str, path: str) -> str:
    """The URI of a path relative to a folder, which cannot lead out of the store."""
    return _root(folder) + posixpath.normpath(posixpath.join(_path(folder), path)).rstrip("/")

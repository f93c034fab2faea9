"""Relocating a catalog: its videos were moved or copied, and need not be decoded again to find their facts.

Each file is looked up in its new place. Its size must be the same, and where the catalog has checksums of it, they must
fit: of a file that was read from a disk, the first 64 KiB; of one from a store, everything. Then its new time or ETag
is taken over. If any file is missing or another one, nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from essp.catalog.found import few
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import NotACatalog, is_relative, read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.objects.block_sums import BlockSums
from essp_common.objects.port import ObjectStore
from essp_common.quantities import counted
from essp_common.wiring import Stores

_LOOKUPS = 16  # files looked up at once: over S3 each costs a round trip


@dataclass(frozen=True, slots=True)
class Relocated:
    """The result for the files of a catalog."""

    files: int
    moved: int
    """Files with another place than before."""
    taken: int
    """Files with another time or ETag than before, whose size and checksums fit."""
    unchecked: int
    """Those of them that have no checksum, so that only their sizes were compared."""


@dataclass(frozen=True, slots=True)
class _File:
    uri: str
    etag: str
    problem: str = ""
    taken: bool = False
    checked: bool = True


def relocate(
    catalog: str, stores: Stores, old: str = "", new: str = "", out: str = "", relative: bool | None = None
) -> Relocated:
    """Write a catalog whose videos below the URI `old` are now below `new`; without these, files may have other times.

    catalog, out: URIs of the catalog and of the new one; by default it is replaced. relative: whether the new one has
    relative URIs; None: as the old one has, or if all videos are in its folder or below it.

    Raises `ConfigError` if a file is missing or another one, no video is below `old`, or anything but a catalog is at
    `out`; `NotFound` for no catalog.
    """
    store, key = stores.resolve(catalog)
    found = read_catalog(store, key)
    target, name = stores.resolve(out or catalog)
    if out:
        _check_replaceable(target, name)
    rows = list(found.rows)
    old, new = old.removesuffix("/"), new.removesuffix("/")  # of `file:///`, too
    places = {row.uri: _moved(row.uri, old, new) for row in rows if row.uri}
    if old and all(uri == place for uri, place in places.items()):
        raise ConfigError(
            f"no video of {catalog} is below {old}; it has for example {few(list(places)[:1]) or 'no video'}",
            field="OLD",
            code="unknown",
        )
    firsts: dict[str, VideoRow] = {}
    for row in rows:
        if row.error is None:
            firsts.setdefault(row.uri, row)
    with ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="catalog-lookup") as pool:
        looked = dict(zip(firsts, pool.map(partial(_looked_up, stores, places), firsts.values()), strict=True))
    if problems := [file.problem for file in looked.values() if file.problem]:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ConfigError(
            f"{counted(len(problems), 'file')} of {len(looked)} cannot be taken over: {'; '.join(problems[:3])}{more}. "
            "Nothing was written; for changed files, build the catalog again",
            field="NEW" if new else "",
            code="not_found",
        )
    keep = True if relative is None and is_relative(store, key) else relative
    moved = Catalog([_relocated(row, places, looked) for row in rows], _moved(found.source, old, new))
    write_catalog(target, name, moved, relative=keep)
    taken = [file for file in looked.values() if file.taken]
    return Relocated(
        len(looked),
        sum(uri != places[uri] for uri in looked),
        len(taken),
        sum(not file.checked for file in taken),
    )


def _check_replaceable(target: ObjectStore, name: str) -> None:
    """Raises `ConfigError` if anything but a catalog would be replaced."""
    try:
        read_catalog(target, name, ())
    except NotACatalog as error:
        raise ConfigError(
            f"{target.uri(name)} exists and is not a catalog, so it is not overwritten; name another output",
            field="--out",
            code="exists",
        ) from error
    except (NotFound, ConfigError):  # none, or one of another version
        return


def _moved(uri: str, old: str, new: str) -> str:
    """The new place of a file."""
    return new + uri.removeprefix(old) if old and (uri == old or uri.startswith(f"{old}/")) else uri


def _looked_up(stores: Stores, places: Mapping[str, str], row: VideoRow) -> _File:
    uri = places[row.uri]
    try:
        store, key = stores.resolve(uri, video=True)
        info = store.head(key)
        if row.size_bytes and info.size_bytes != row.size_bytes:
            return _File(uri, "", f"{uri} has {info.size_bytes} bytes, and had {row.size_bytes}")
        if info.etag == row.etag:
            return _File(uri, info.etag)
        sums = BlockSums.unpacked(row.sums)
        if sums is None:
            return _File(uri, info.etag, taken=True, checked=False)
        with closing(store.open(key)) as file:
            for number in range(len(sums)):
                if not sums.fit(number, file.read(sums.block_bytes)):
                    return _File(uri, "", f"{uri} has the size of the file in the catalog, and is another one")
        return _File(uri, info.etag, taken=True)
    except NotFound:
        return _File(uri, "", f"{uri} does not exist")
    except (PermanentError, ConfigError) as error:
        return _File(uri, "", str(error))


def _relocated(row: VideoRow, places: Mapping[str, str], looked: Mapping[str, _File]) -> VideoRow:
    file = looked.get(row.uri) if row.error is None else None
    return replace(row, uri=places.get(row.uri, row.uri), etag=row.etag if file is None else file.etag)

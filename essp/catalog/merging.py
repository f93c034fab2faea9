"""Merging catalogs: several data sets in one catalog, whose rows say which of them they are from.

No video is opened. Ids, groups and events get the name of their data set in front, so none of them is taken for one of
another data set. Classes with the same name become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import NotACatalog, read_catalog, write_catalog
from essp_common.catalog.rows import RowPieces, VideoRow, extra_of
from essp_common.catalog.source_columns import GROUP
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

COLUMN = "dataset"
"""The column with the name of the data set of a row."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written."""

    rows: Mapping[str, int]
    """Of each data set."""
    classes: Mapping[str, int]
    """Of each data set."""
    all_classes: int
    """Different ones."""


def merge(
    catalogs: Mapping[str, str], out: str, stores: Stores, column: str = COLUMN, relative: bool | None = None
) -> Merged:
    """Write a catalog of all rows of several. Equal catalogs give equal bytes.

    catalogs: name of each data set -> URI of its catalog. out: where to write. column: of the names. relative: as for
    `write_catalog`.

    Raises `NotFound` for a missing catalog; `ConfigError` for a name that cannot be in ids, for a column that a catalog
    has already, and if anything else is at `out`.
    """
    if len(catalogs) < 2:
        raise ConfigError("name at least two catalogs, as in own=own.parquet web=web.parquet", code="missing")
    for name in catalogs:
        if not name or "/" in name or not name.isprintable():
            raise ConfigError(f"{name!r} is not a name for a data set: ids begin with it and a slash", code="invalid")
    if column in ("", GROUP):
        raise ConfigError(f"{column!r} cannot be its name; write another one", field="--column", code="invalid")
    source = " + ".join(f"{name}={uri}" for name, uri in catalogs.items())
    target, key = stores.resolve(out)
    _check_free(target, key, source)
    pieces = RowPieces()
    rows: dict[str, int] = {}
    classes: dict[str, set[str]] = {}
    for name, uri in catalogs.items():
        catalog = read_catalog(*stores.resolve(uri))
        for row in catalog.rows:
            pieces.add(_of(name, row, column, uri))
        rows[name], classes[name] = len(catalog.rows), set(catalog.classes)
    write_catalog(target, key, Catalog.of_columns(pieces.columns(), source), relative=relative)
    different = set[str]().union(*classes.values())
    return Merged(rows, {name: len(found) for name, found in classes.items()}, len(different))


def _check_free(target: ObjectStore, key: str, source: str) -> None:
    """Raises `ConfigError` if something else than the catalog of the same merge would be overwritten."""
    try:
        found = read_catalog(target, key, ()).source
    except NotFound:
        return
    except NotACatalog:
        found = ""
    if found != source:
        raise ConfigError(
            f"{target.uri(key)} exists, and is {f'a catalog of {found}' if found else 'not a catalog'}; name another "
            "output, or remove it first",
            field="--out",
            code="exists",
        )


def _of(name: str, row: VideoRow, column: str, uri: str) -> VideoRow:
    """The row of a catalog as a row of the merged one."""
    meta = row.meta
    if column in meta:
        raise ConfigError(f"{uri} has a column {column!r} already; name another one", field="--column", code="exists")
    return replace(
        row,
        id=f"{name}/{row.id}",
        group=row.group and f"{name}/{row.group}",
        event=row.event and f"{name}/{row.event}",
        extra=extra_of({**meta, column: name}),
    )

"""The events of a catalog: what several cameras, or two eyes, show at the same time.

A row of a catalog is one view. `of_views` makes a catalog of events from it: its rows are those of the first view that
a job names, and each further view has one row for each of them (`Catalog.further`). An event is usable if each of these
views is. So plans draw events as they draw videos, and a video that cannot be decoded fails its whole event.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.columns import Texts, made_of, taken
from essp_common.catalog.rows import Rows
from essp_common.errors import ConfigError
from essp_common.validation import suggested

_FEW = 8


def views_of(catalog: Catalog) -> tuple[str, ...]:
    """The names of the views of the catalog's events, sorted; empty if its videos have no names of views."""
    return tuple(name for name in catalog.rows.names("view") if name)


def check_one_view(catalog: Catalog) -> None:
    """Raises `ConfigError` for a catalog with several views: one event would count as several videos."""
    names = views_of(catalog)
    if len(names) > 1:
        raise ConfigError(
            f"the catalog has events of {len(names)} views ({_few(names)}); name those to decode, each with its clip: "
            f"clip={{{names[0]!r}: essp.Clip(...), ...}} of a loader, or clip.views of a job",
            field="clip.views",
            code="missing",
        )


def of_views(catalog: Catalog, views: Sequence[str]) -> Catalog:
    """The events of a catalog as they are seen from these views; the rows are those of the first one.

    Raises `ConfigError` for an unknown view.
    """
    there = views_of(catalog)
    for name in views:
        if name not in there:
            known = suggested(name, there, "views: ") if there else "its videos have no views; give one clip for all"
            raise ConfigError(
                f"the catalog has no view {name!r}; {known}", field=f"clip.views.{name}", code="unknown"
            )
    rows = catalog.rows
    first = rows.where(rows.has("view", views[0]))
    errors = _errors(first)
    further: dict[str, Rows] = {}
    for name in views[1:]:
        further[name], missing = _beside(first, rows.where(rows.has("view", name)))
        found = _errors(further[name], timed=True)
        for row, error in enumerate(found):
            if missing[row] or error is not None:
                errors[row] = errors[row] or f"view: {name}: {'there is none' if missing[row] else error}"
    if further:
        errors = [known or error for known, error in zip(errors, _errors(first, timed=True), strict=True)]
    words = pa.array(errors, pa.string()).dictionary_encode()
    columns = {name: taken(column, first.places) for name, column in rows.columns.items()}
    columns["error"] = made_of(pa.string(), [words], words=True).column
    return Catalog.of_columns(columns, catalog.source, further)


def _beside(first: Rows, other: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """The row of another view for each event, and which events lack it; those have any row in its place."""
    if not len(other):
        return first, np.ones(len(first), np.bool_)
    places = pc.index_in(_events(first), value_set=_events(other))
    missing = places.is_null().to_numpy(False)
    return other.where(places.fill_null(0).to_numpy()), missing


def _events(rows: Rows) -> pa.Array:
    column = rows.columns["event"]
    if not isinstance(column, Texts):
        raise TypeError("event is a column of texts")
    return column.arrow().take(pa.array(rows.places))


def _errors(rows: Rows, timed: bool = False) -> list[str | None]:
    """Why each row is unusable; None: it is usable. `timed`: a row needs to say when its frames are shown."""
    codes, words = rows.words("error")
    errors = [None if code < 0 else words.value(code) for code in codes.tolist()]
    if timed:
        for row in np.flatnonzero((codes < 0) & ~(rows.numbers("fps") > 0)).tolist():
            errors[row] = "its frame rate is not known, so it cannot be brought into step with other views"
    return errors


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")

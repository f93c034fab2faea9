"""The events of a catalog: what several cameras, or two eyes, show at the same time.

A row of a catalog is one view. `of_views` makes a catalog of events from it: its rows are those of the first view that
a job names, and each further view has one row for each of them (`Catalog.events`). An event is usable if each of these
views is, and they show something at the same time: clips are drawn from that time. So plans draw events as they draw
videos, and a video that cannot be decoded fails its whole event.
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
from essp_common.catalog.timing import SAME_MOMENT_S, Clock
from essp_common.catalog.view import Events
from essp_common.errors import ConfigError
from essp_common.validation import suggested

_FEW = 8
_LEAST_FPS = 1e-6


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
            known = suggested(name, there, "views: ") if there else "its videos are not views of events"
            raise ConfigError(f"the catalog has no view {name!r}; {known}", field=f"clip.views.{name}", code="unknown")
    rows = catalog.rows
    first = rows.where(rows.has("view", views[0]))
    errors = _errors(first)
    further: dict[str, Rows] = {}
    begin_s, end_s = _times(first)
    for name in views[1:]:
        further[name], missing = _beside(first, rows.where(rows.has("view", name)))
        found = _errors(further[name], timed=True)
        for row, error in enumerate(found):
            if missing[row] or error is not None:
                errors[row] = errors[row] or f"view: {name}: {'there is none' if missing[row] else error}"
        times = _times(further[name])
        begin_s, end_s = np.maximum(begin_s, times[0]), np.minimum(end_s, times[1])
    first_frame, last_frame = _frames(first, begin_s, end_s)
    if further:
        errors = [known or error for known, error in zip(errors, _errors(first, timed=True), strict=True)]
        for row in np.flatnonzero(last_frame < first_frame).tolist():
            errors[row] = errors[row] or "view: its views show nothing at the same time"
    words = pa.array(errors, pa.string()).dictionary_encode()
    columns = {name: taken(column, first.places) for name, column in rows.columns.items()}
    columns["error"] = made_of(pa.string(), [words], words=True).column
    events = Events(further, first_frame, np.maximum(last_frame, first_frame)) if further else None
    return Catalog.of_columns(columns, catalog.source, events)


def _times(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From when to when each row shows something, in seconds from the beginning of its event."""
    first, last = (rows.numbers(name).astype(np.float64) for name in ("first_frame", "last_frame"))
    shift = rows.numbers("start_s") - rows.numbers("origin_s")
    fps = np.maximum(rows.numbers("fps"), _LEAST_FPS)
    begin_s, end_s = shift + first / fps, shift + (last + 1) / fps
    for row in np.flatnonzero(rows.lengths("timestamps")).tolist():
        begin_s[row], end_s[row] = Clock(rows, row).shows_s
    return begin_s, end_s


def _frames(
    rows: Rows, begin_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last frame of each row that appears in [begin_s, end_s)."""
    shift = rows.numbers("start_s") - rows.numbers("origin_s") + SAME_MOMENT_S
    fps = np.maximum(rows.numbers("fps"), _LEAST_FPS)
    first, last = (np.ceil((times_s - shift) * fps).astype(np.int64) for times_s in (begin_s, end_s))
    last -= 1
    for row in np.flatnonzero(rows.lengths("timestamps")).tolist():
        first[row], last[row] = Clock(rows, row).frames(float(begin_s[row]), float(end_s[row]))
    own = rows.numbers("first_frame").astype(np.int64), rows.numbers("last_frame").astype(np.int64)
    return np.maximum(first, own[0]), np.minimum(last, own[1])


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

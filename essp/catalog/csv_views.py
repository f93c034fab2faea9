"""The columns of a CSV file that lists several views of each event, in one of two forms.

    path:left,path:right,label        a row an event, a column a view; also with --view-columns LEFT,RIGHT
    event,view,path,label             a row a view; rows with the same `event` show the same event

In the first form, `start_s:right` (or `end_s`, `start_frame`, `end_frame`) is the bound of one view, in the clock of
its own file; `start_s` alone is that of all views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from essp.listed_files import PATH_COLUMNS
from essp_common.errors import ConfigError

OF_A_VIEW = ":"
_OPTION = "--view-columns"


def columns_of_views(uri: str, header: Sequence[str], wanted: str | None) -> Mapping[str, str]:
    """View -> column of its videos, in lower case; in the order of the file, or of `wanted`. Empty: there is one view.

    `wanted`: the value of --view-columns: columns, or VIEW=COLUMN, separated by commas. Raises `ConfigError`.
    """
    if wanted is not None:
        return _named(header, wanted)
    found: dict[str, str] = {}
    for name in header:
        column, mark, view = name.partition(OF_A_VIEW)
        if mark and column.strip().lower() in PATH_COLUMNS:
            if not view.strip():
                raise ConfigError(f"{uri}: column {name!r} does not name a view; write {name}NAME", code="invalid")
            found[view.strip()] = name.lower()
    return found


def _named(header: Sequence[str], wanted: str) -> Mapping[str, str]:
    there = {name.lower(): name for name in header}
    found: dict[str, str] = {}
    for text in wanted.split(","):
        view, mark, column = (part.strip() for part in text.partition("="))
        column = column if mark else view
        if not view or not column:
            raise ConfigError(
                f"{wanted!r} must be columns, or VIEW=COLUMN, separated by commas", field=_OPTION, code="invalid"
            )
        if column.lower() not in there:
            raise ConfigError(
                f"there is no column {column!r}; columns: {', '.join(header)}", field=_OPTION, code="unknown"
            )
        found[view] = column.lower()
    twice = [name for name, count in Counter(found.values()).items() if count > 1]
    if twice or len(found) < len(wanted.split(",")):
        raise ConfigError(f"{wanted!r} names a view or a column twice", field=_OPTION, code="conflict")
    return found

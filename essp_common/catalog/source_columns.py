"""The columns of a catalog that come from its source: `group`, and the further columns of `VideoRow.extra`."""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.catalog.rows import Rows, meta_of
from essp_common.errors import ConfigError
from essp_common.validation import suggested

GROUP = "group"
"""The only one with a column of its own."""


def stored_in(*columns: str) -> tuple[str, ...]:
    """The columns of the file that hold those with these names."""
    return ("extra",) if any(name not in ("", GROUP) for name in columns) else ()


def values_of(rows: Rows, column: str, field: str) -> list[str]:
    """The value of each row in a column, as text; empty if it has none. `field`: the job's field, for messages.

    Raises `ConfigError` for an unknown column.
    """
    if column == GROUP:
        codes, words = rows.words(GROUP)
        names = [words.value(code) for code in range(len(words))]
        return [names[code] for code in codes.tolist()]
    metas = list(_metas(rows))
    if not any(column in meta for meta in metas):
        known = suggested(column, [GROUP, *sorted({name for meta in metas for name in meta})], "it has: ")
        raise ConfigError(
            f"there is no column {column!r}, which {field} names; {known}. A catalog keeps the columns of its CSV "
            "file, and has split_1, ... for the divisions of UCF-101 and HMDB51; build the catalog again with `essp "
            "catalog build`. One made by `essp catalog merge` has the column `dataset`",
            field=field,
            code="unknown",
        )
    return ["" if meta.get(column) is None else str(meta[column]) for meta in metas]


def _metas(rows: Rows) -> Iterator[dict[str, object]]:
    for row in range(len(rows)):
        extra = rows.text("extra", row)
        yield meta_of(rows.text("id", row), extra) if extra else {}

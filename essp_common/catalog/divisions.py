"""A division of a catalog other than its column `split`: by another column of the source, or by leaving videos out.

    data: {split_column: split_2}             each video is in the split that this column gives
    data: {left_out: {group: person03}}       the test split is these videos, the training split all others

Data sets such as UCF-101 have several divisions, over which results are averaged; small ones leave out each person or
sequence in turn. The rows stay the same, only their `split` changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import meta_of
from essp_common.catalog.splits import canonical_split
from essp_common.errors import ConfigError
from essp_common.job.data_spec import DataSpec
from essp_common.validation import suggested

GROUP = "group"
"""The catalog column that `left_out` may name; all others are columns of the source."""


def columns_of(data: DataSpec) -> tuple[str, ...]:
    """The columns of the catalog that define the division."""
    named = (data.split_column, *data.left_out)
    return ("extra",) if any(name not in ("", GROUP) for name in named) else ()


def divided(catalog: Catalog, data: DataSpec) -> Catalog:
    """The catalog with the splits of this division.

    Raises `ConfigError` for an unknown column, or a value that no video has.
    """
    if data.split_column:
        splits = values_of(catalog, data.split_column, "data.split_column")
        return catalog.with_splits([canonical_split(split) for split in splits])
    for column, left_out in data.left_out.items():
        values = values_of(catalog, column, "data.left_out")
        if left_out not in values:
            known = suggested(left_out, sorted({value for value in values if value}))
            raise ConfigError(
                f"no video has {column} {left_out!r}, which data.left_out names; {known}",
                field="data.left_out",
                code="unknown",
            )
        return catalog.with_splits(["test" if value == left_out else "train" for value in values])
    return catalog


def values_of(catalog: Catalog, column: str, field: str) -> list[str]:
    """The value of each row in a column, as text; empty if it has none. `field`: the job's field, for messages.

    Raises `ConfigError` for an unknown column.
    """
    if column == GROUP:
        codes, words = catalog.rows.words(GROUP)
        names = [words.value(code) for code in range(len(words))]
        return [names[code] for code in codes.tolist()]
    metas = list(_metas(catalog))
    if not any(column in meta for meta in metas):
        known = suggested(column, [GROUP, *sorted({name for meta in metas for name in meta})], "it has: ")
        raise ConfigError(
            f"there is no column {column!r}, which {field} names; {known}. A catalog keeps the columns of its CSV "
            "file, and has split_1, ... for "
            "the divisions of UCF-101 and HMDB51; build the catalog again with `essp "
            "catalog build`",
            field=field,
            code="unknown",
        )
    return ["" if meta.get(column) is None else str(meta[column]) for meta in metas]


def _metas(catalog: Catalog) -> Iterator[dict[str, object]]:
    for row in range(len(catalog.rows)):
        extra = catalog.rows.text("extra", row)
        yield meta_of(catalog.rows.text("id", row), extra) if extra else {}

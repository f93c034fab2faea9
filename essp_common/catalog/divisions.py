"""A division of a catalog other than its column `split`: by another column of the source, or by leaving videos out.

    data: {split_column: split_2}             each video is in the split that this column gives
    data: {left_out: {group: person03}}       the test split is these videos, the training split all others

Data sets such as UCF-101 have several divisions, over which results are averaged; small ones leave out each person or
sequence in turn. The rows stay the same, only their `split` changes.
"""

from __future__ import annotations

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.source_columns import stored_in, values_of
from essp_common.catalog.split_names import canonical_split
from essp_common.errors import ConfigError
from essp_common.job.data_spec import DataSpec
from essp_common.validation import suggested


def columns_of(data: DataSpec) -> tuple[str, ...]:
    """The columns of the catalog that define the division."""
    return stored_in(data.split_column, *data.left_out)


def divided(catalog: Catalog, data: DataSpec) -> Catalog:
    """The catalog with the splits of this division.

    Raises `ConfigError` for an unknown column, or a value that no video has.
    """
    if data.split_column:
        splits = values_of(catalog.rows, data.split_column, "data.split_column")
        return catalog.with_splits([canonical_split(split) for split in splits])
    for column, left_out in data.left_out.items():
        values = values_of(catalog.rows, column, "data.left_out")
        if left_out not in values:
            known = suggested(left_out, sorted({value for value in values if value}))
            raise ConfigError(
                f"no video has {column} {left_out!r}, which data.left_out names; {known}",
                field="data.left_out",
                code="unknown",
            )
        return catalog.with_splits(["test" if value == left_out else "train" for value in values])
    return catalog

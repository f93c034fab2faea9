"""The catalog: all videos of a data set, with their classes and splits.

Built by `essp/catalog/build.py`, stored by `file.py`, divided into training, validation and test by
`essp_common/catalog/splits.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from essp_common.catalog.columns import Column, made_of, taken
from essp_common.catalog.rows import Rows, VideoRow
from essp_common.catalog.view import CatalogView, Events


class Catalog:
    """All rows, including unusable ones, sorted by id.

    For example:

        catalog = essp.open_catalog("catalog.parquet")
        len(catalog.view("train")), catalog.classes, [row.id for row in catalog.rows if row.error]
    """

    def __init__(self, rows: Iterable[VideoRow] = (), source: str = "") -> None:
        """`source`: what it was built from."""
        self.rows = Rows.by_id(rows)
        self.source = source
        """What it was built from."""
        self.events: Events | None = None
        """What further views show of the event of each row, if clips have several."""

    @classmethod
    def of_columns(cls, columns: Mapping[str, Column], source: str, events: Events | None = None) -> Catalog:
        """A catalog with these columns, whose rows may be in any order; with `events`, in that of ids."""
        ids = columns["id"]
        if not _rises(ids):
            places = pc.array_sort_indices(ids.arrow()).to_numpy()  # type: ignore[union-attr]
            columns = {name: taken(column, places) for name, column in columns.items()}
        catalog = cls.__new__(cls)
        catalog.rows = Rows(columns, np.arange(len(ids), dtype=np.int32))
        catalog.source = source
        catalog.events = events
        return catalog

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        return self.source == other.source and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Catalog({len(self.rows)} rows of {self.source or 'nothing'!r})"

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names, sorted. Classes of unusable rows are included, so that repairing a file does not change the
        numbering.

        Usable videos without a label have class `""`.
        """
        return self._classes[0]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, sorted."""
        return self.rows.names("split")

    def with_splits(self, splits: Sequence[str]) -> Catalog:
        """The same rows with other splits. `splits`: one for each row, in the order of ids."""
        words = pa.array(splits, pa.string()).dictionary_encode()
        column = made_of(pa.string(), [words], words=True).column
        return Catalog.of_columns({**self.rows.columns, "split": column}, self.source, self.events)

    def view(self, split: str | None) -> CatalogView:
        """The usable videos of a split (None: of all splits), by id. Empty for an unknown split."""
        rows = self.rows
        return self._view(rows.usable if split is None else rows.usable & rows.has("split", split))

    def view_of(self, rows: Rows) -> CatalogView:
        """The usable ones of these rows of the catalog, by id, with the class ids of the whole catalog."""
        chosen = np.zeros(len(self.rows), np.bool_)
        chosen[rows.places] = True
        return self._view(chosen & self.rows.usable)

    @cached_property
    def _classes(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Class names, and the class id of each code."""
        codes, names = self.rows.words("class_name")
        used = {code: names.value(code) for code in self.rows.distinct("class_name").tolist()}
        unlabelled = [code for code, name in used.items() if not name]
        if unlabelled and not (self.rows.usable & (codes == unlabelled[0])).any():
            del used[unlabelled[0]]
        ordered = sorted(used, key=used.__getitem__)
        number = np.full(len(names), -1, np.int32)
        number[ordered] = np.arange(len(ordered))
        return tuple(used[code] for code in ordered), number

    def _view(self, chosen: NDArray[np.bool_]) -> CatalogView:
        rows = self.rows.where(chosen)
        names, number = self._classes
        codes, _ = rows.words("class_name")
        return CatalogView(rows, names, number[codes], None if self.events is None else self.events.where(chosen))


def _rises(ids: Column) -> bool:
    """Whether each id is greater than the one before it."""
    array = ids.arrow()  # type: ignore[union-attr]
    return bool(pc.all(pc.less(array[:-1], array[1:]), min_count=0).as_py())

"""All that videos show, for jobs that learn each label by itself (`data.targets: labels`)."""

from __future__ import annotations

from essp_common.catalog.columns import Blobs
from essp_common.catalog.table import Catalog, Rows
from essp_common.catalog.targets import unpack

COLUMN = "targets"


def label_names(catalog: Catalog) -> tuple[str, ...]:
    """What there is to learn, sorted: classes and labels of all videos, also of those that cannot be used, so that a
    repaired file renumbers nothing."""
    packed = _packed(catalog.rows)
    found = set(catalog.classes) - {""}
    for place in catalog.rows.places[packed.lengths[catalog.rows.places] > 0].tolist():
        found.update(unpack(packed.encoded(place), names_only=True).labels)
    return tuple(sorted(found))


def has_several_labels(rows: Rows) -> bool:
    """Whether a video has more than one."""
    packed = _packed(rows)
    labelled = rows.places[packed.lengths[rows.places] > 0].tolist()
    return any(len(set(unpack(packed.encoded(place), names_only=True).labels)) > 1 for place in labelled)


class LabelSets:
    """The labels of the videos of one view."""

    def __init__(self, rows: Rows, names: tuple[str, ...]) -> None:
        """`names`: those of the catalog, by label id."""
        self._rows = rows
        self._packed = _packed(rows)
        self._number = {name: number for number, name in enumerate(names)}

    def of(self, video: int) -> tuple[int, ...]:
        """The numbers of a video's labels, ascending; of a video without labels, that of its class."""
        names = unpack(self._packed.encoded(int(self._rows.places[video])), names_only=True).labels
        shown = names or (self._rows.text("class_name", video),)
        return tuple(sorted({self._number[name] for name in shown if name}))


def _packed(rows: Rows) -> Blobs:
    column = rows.columns[COLUMN]
    if not isinstance(column, Blobs):
        raise TypeError(f"{COLUMN} is no column of bytes")
    return column

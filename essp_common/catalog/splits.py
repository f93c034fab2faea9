"""Which videos of a catalog a job trains, validates and tests on.

If a catalog has no validation split, one is carved out of its training videos: per class, by a hash of the video's id,
so that it is the same for every job, machine and order of rows. Videos that are too similar to validate on stay on one
side: the segments of one file, and the videos of one group (a person, a recording).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import Rows, VideoRow
from essp_common.catalog.split_names import canonical_split
from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.data_spec import DataSpec
from essp_common.validation import suggested

_DEFAULT = DataSpec()


@dataclass(frozen=True)
class Splits:
    """The videos for each kind of phase."""

    train: CatalogView
    validation: CatalogView
    test: CatalogView | None
    carved: bool
    """Whether the validation videos were set aside from the training split."""


def splits_of(catalog: Catalog, data: DataSpec) -> Splits:
    """The views that a job's `data` section names.

    The default names `validation` and `test` may be missing from the catalog (the first is then carved, the second
    omitted); any other missing name is an error. Raises `ConfigError`, naming the existing splits.
    """
    train = _named(catalog, data.train, "data.train")
    validation = _optional(catalog, data.validation, _DEFAULT.validation, "data.validation")
    test = _optional(catalog, data.test, _DEFAULT.test, "data.test")
    if validation is not None:
        return Splits(train, validation, test, carved=False)
    left, aside = _carved(catalog, train, data, "name a split in data.validation")
    return Splits(left, aside, test, carved=True)


def _carved(catalog: Catalog, train: CatalogView, data: DataSpec, instead: str) -> tuple[CatalogView, CatalogView]:
    """The remaining training videos, and the videos set aside for validation.

    Raises `ConfigError` if none can be set aside; `instead`: what the user may do about it.
    """
    name = canonical_split(data.train)
    if not data.validation_fraction:
        raise ConfigError(
            f"is 0, and there is no validation split; set aside a share of split {name!r}, or {instead}",
            field="data.validation_fraction",
            code="missing",
        )
    held_out = _held_out(train.rows, data.validation_fraction)
    if not held_out.any() and data.records:
        raise ConfigError(
            "is not given, and no class has a second record that could be set aside; add "
            "records, or name a data set to validate on",
            field="data.records_validation",
            code="missing",
        )
    if not held_out.any():
        raise ConfigError(
            f"no validation videos can be set aside, since no class of split {name!r} has two files (of two groups, "
            f"if it has groups); add videos, or {instead}",
            field="data.validation_fraction",
            code="empty",
        )
    left, aside = (catalog.view_of(train.rows.where(chosen)) for chosen in (~held_out, held_out))
    return left, aside


def consumed_view(catalog: Catalog, data: DataSpec) -> CatalogView:
    """The videos for the user's own loops; no other split needs to exist.

    Raises `ConfigError`, naming the existing splits.
    """
    if data.consumed == "test":
        return _named(catalog, data.test or "test", "data.consumed")
    trains = data.consumed == "train"
    if trains and not data.validation_fraction:
        return _named(catalog, data.train, "data.train")
    validation = _optional(catalog, data.validation, _DEFAULT.validation, "data.validation")
    if validation is not None:
        return _named(catalog, data.train, "data.train") if trains else validation
    instead = "set it to 0 and train on all" if trains else "take another split (data.consumed)"
    left, aside = _carved(catalog, _named(catalog, data.train, "data.train"), data, instead)
    return left if trains else aside


def carve(rows: Iterable[VideoRow], fraction: float) -> frozenset[str]:
    """Ids of the videos to set aside: about this fraction of each class, at least one, and never the whole class.

    Files and groups stay whole, so a class with few large groups can miss its share by far: it comes as close as
    possible without changing the order of the others.
    """
    columns = Rows.of(rows)
    return frozenset(columns.text("id", row) for row in np.flatnonzero(_held_out(columns, fraction)).tolist())


def straddling(sides: Iterable[tuple[str, Rows]]) -> dict[str, tuple[str, ...]]:
    """Groups with videos on several sides of one catalog -> the names of those sides, both sorted."""
    by_side = [(name, rows, rows.distinct("group")) for name, rows in sides]
    if not by_side:
        return {}
    times = np.bincount(np.concatenate([codes for _, _, codes in by_side]))
    found: defaultdict[int, set[str]] = defaultdict(set)
    for name, _, codes in by_side:
        for code in codes[times[codes] > 1].tolist():
            found[code].add(name)
    _, words = by_side[0][1].words("group")
    named = {words.value(code): tuple(sorted(names)) for code, names in found.items()}
    return {group: names for group, names in sorted(named.items()) if group and len(names) > 1}


def _held_out(rows: Rows, fraction: float) -> NDArray[np.bool_]:
    """Which of the rows, sorted by id, `carve` sets aside."""
    used, (codes, _) = rows.distinct("class_name"), rows.words("class_name")
    number = np.zeros(1 + int(max(used, default=0)), np.int32)
    number[used] = np.arange(len(used))
    classes = number[codes]
    sizes = np.bincount(classes, minlength=len(used)).tolist()
    wanted = [max(1, round(size * fraction)) for size in sizes]
    cluster, count = _clusters(rows)
    if count == len(rows):
        return _first_ones(classes, cluster, [min(share, size - 1) for share, size in zip(wanted, sizes, strict=True)])
    chosen = np.zeros(count, np.bool_)
    chosen[_chosen(_Parts(cluster, classes, count, len(used)), sizes, wanted)] = True
    return chosen[cluster]


def _first_ones(classes: NDArray[np.int32], order: NDArray[np.int64], shares: list[int]) -> NDArray[np.bool_]:
    """The first videos of each class in this order, up to its share: equals `_chosen` if nothing must stay
    together."""
    by_class = np.lexsort((order, classes))
    begins = np.searchsorted(classes[by_class], np.arange(len(shares)))
    place = np.arange(len(classes)) - begins[classes[by_class]]
    found = np.zeros(len(classes), np.bool_)
    found[by_class[place < np.array(shares, np.int64)[classes[by_class]]]] = True
    return found


class _Parts:
    """The number of videos of each class in each cluster."""

    def __init__(self, cluster: NDArray[np.int64], classes: NDArray[np.int32], count: int, of: int) -> None:
        keys, videos = np.unique(cluster * of + classes, return_counts=True)
        self._classes: list[int] = (keys % of).tolist()
        self._videos: list[int] = videos.tolist()
        self._begins: list[int] = np.searchsorted(keys, np.arange(count + 1) * of).tolist()
        self.sizes = np.bincount(cluster, minlength=count)
        self._owners, self._of_class = keys // of, keys % of

    def __len__(self) -> int:
        return len(self._begins) - 1

    def __getitem__(self, cluster: int) -> list[tuple[int, int]]:
        """(class, videos) of a cluster."""
        begin, end = self._begins[cluster], self._begins[cluster + 1]
        return list(zip(self._classes[begin:end], self._videos[begin:end], strict=True))

    def of_classes(self, classes: list[int]) -> NDArray[np.int64]:
        """The clusters with videos of these classes, smallest first."""
        found = np.unique(self._owners[np.isin(self._of_class, classes)])
        return found[np.argsort(self.sizes[found], kind="stable")]


def _chosen(parts: _Parts, left: list[int], wanted: list[int]) -> list[int]:
    """The clusters to set aside. `left`: the remaining videos of each class, which this decreases."""
    taken = [0] * len(left)
    chosen: list[int] = []

    def take(cluster: int, videos: list[tuple[int, int]]) -> None:
        chosen.append(cluster)
        for of, count in videos:
            taken[of] += count
            left[of] -= count

    def spared(videos: list[tuple[int, int]]) -> bool:
        return all(left[of] > count for of, count in videos)

    def gain(videos: list[tuple[int, int]]) -> int:
        """How much closer these videos bring the counts to the wanted numbers, summed over the classes."""
        return sum(abs(taken[of] - wanted[of]) - abs(taken[of] + count - wanted[of]) for of, count in videos)

    for cluster in range(len(parts)):
        if gain(videos := parts[cluster]) > 0 and spared(videos):
            take(cluster, videos)
    # If every group of a class is more than twice its share, the class has none yet: take its smallest group.
    for cluster in parts.of_classes([of for of, count in enumerate(taken) if not count]).tolist():
        videos = parts[cluster]
        if any(not taken[of] for of, _ in videos) and spared(videos):
            take(cluster, videos)
    return chosen


def _clusters(rows: Rows) -> tuple[NDArray[np.int64], int]:
    """Clusters of rows that must stay together because they share a file or a group, directly or through others.

    Returns the cluster number of each row, and the number of clusters. They are numbered in the order of a hash of
    their first id.
    """
    labels = together(rows)
    count = int(labels.max(initial=-1)) + 1
    first = np.zeros(count, np.int64)
    first[labels[::-1]] = np.arange(len(labels))[::-1]
    ids = rows.where(first).encoded("id")
    digests = b"".join(hashlib.blake2b(name, digest_size=16).digest() for name in ids)
    words = np.frombuffer(digests, ">u8").reshape(-1, 2)
    rank = np.empty(count, np.int64)
    rank[np.lexsort((words[:, 1], words[:, 0]))] = np.arange(count)
    return rank[labels], count


def together(rows: Rows) -> NDArray[np.int64]:
    """For each row, a number counted from 0, equal for rows that must stay together because they share a file or a
    group, directly or through others."""
    label = rows.alike("uri").astype(np.int64)
    groups, words = rows.words("group")
    grouped = np.flatnonzero(~rows.has("group", ""))
    of_group = groups[grouped]
    while len(grouped):
        least = np.full(len(words), len(label), np.int64)
        np.minimum.at(least, of_group, label[grouped])
        lower = least[of_group]
        if (lower == label[grouped]).all():
            break
        joined = np.arange(len(label))  # maps each label to a lower or equal one
        np.minimum.at(joined, label[grouped], lower)
        while not np.array_equal(further := joined[joined], joined):
            joined = further
        label = joined[label]
    _, numbered = np.unique(label, return_inverse=True)
    return numbered


def _named(catalog: Catalog, split: str, field: str) -> CatalogView:
    name = canonical_split(split)
    view = catalog.view(name)
    if len(view):
        return view
    if name in catalog.splits:
        raise ConfigError(
            f"no video of split {name!r} can be used; `essp catalog show --problems` says why",
            field=field,
            code="empty",
        )
    there = suggested(name, [other or "(none)" for other in catalog.splits])
    raise ConfigError(f"the catalog has no split {name!r}; {there}", field=field, code="unknown")


def _optional(catalog: Catalog, split: str | None, default: str | None, field: str) -> CatalogView | None:
    """None if no split is wanted, or if the default one is not there."""
    if split is None or (canonical_split(split) == default and default not in catalog.splits):
        return None
    return _named(catalog, split, field)

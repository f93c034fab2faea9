"""Which videos of a catalog a job trains, validates and tests on.

A catalog without a validation split gets one carved out of its training videos: per class, by a hash of the
video's id, so that it is the same for every job, machine and order of rows. What is too alike to validate on stays on
one side: the segments cut from one file, and the videos of one group (a person, a recording).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from essp_common.catalog.table import Catalog, CatalogView, VideoRow
from essp_common.errors import ConfigError
from essp_common.job.spec import DataSpec
from essp_common.validation import suggested

_ALIASES = {"training": "train", "val": "validation", "valid": "validation", "dev": "validation", "testing": "test"}
SPLIT_NAMES = frozenset({"train", "validation", "test", *_ALIASES})
"""Names that are recognised as splits where nothing else says what a folder is."""

_DEFAULT = DataSpec()


@dataclass(frozen=True)
class Splits:
    """What each kind of phase draws from."""

    train: CatalogView
    validation: CatalogView
    test: CatalogView | None
    carved: bool
    """The validation videos were set aside from the training split."""


def canonical_split(name: str) -> str:
    """The name under which a split is kept: `val` is `validation`, `Training` is `train`; others as they are."""
    lower = name.strip().lower()
    return _ALIASES.get(lower, lower if lower in SPLIT_NAMES else name.strip())


def splits_of(catalog: Catalog, data: DataSpec) -> Splits:
    """The views a job's `data` section names.

    The default names `validation` and `test` may be absent from the catalog (the first is then carved, the second
    left out); any other name that is not there is a mistake. Raises `ConfigError`, naming the splits there are.
    """
    train_name = canonical_split(data.train)
    train = _named(catalog, train_name, "data.train")
    validation = _optional(catalog, data.validation, _DEFAULT.validation, "data.validation")
    test = _optional(catalog, data.test, _DEFAULT.test, "data.test")
    if validation is not None:
        return Splits(train, validation, test, carved=False)
    held_out = carve(train.rows, data.validation_fraction)
    if not held_out:
        raise ConfigError(
            f"data.validation: the catalog has no such split, and split {train_name!r} has no class with videos to "
            "set aside (two files at least, and of more than one group); add videos or name a split"
        )
    left = catalog.view_of(row for row in train.rows if row.id not in held_out)
    return Splits(left, catalog.view_of(row for row in train.rows if row.id in held_out), test, carved=True)


def consumed_view(catalog: Catalog, data: DataSpec) -> CatalogView:
    """The videos that loops of the user's own get. Raises `ConfigError`, naming the splits there are."""
    splits = splits_of(catalog, data)
    view = {"train": splits.train, "validation": splits.validation, "test": splits.test}[data.consumed]
    if view is None:
        there = suggested("test", [split or "(none)" for split in catalog.splits])
        raise ConfigError(f"data.consumed: the catalog has no split {data.test or 'test'!r}; {there}")
    return view


def carve(rows: tuple[VideoRow, ...], fraction: float) -> frozenset[str]:
    """Ids of the videos to set aside: of each class about this share, at least one, and never all of it.

    Files and groups stay whole, so a class with few large groups can be far from its share: it comes as near as it can
    without changing the others' order.
    """
    clusters = [(cluster, Counter(row.class_name for row in cluster)) for cluster in _clusters(rows)]
    left = Counter(row.class_name for row in rows)
    wanted = {name: max(1, round(count * fraction)) for name, count in left.items()}
    taken: Counter[str] = Counter()
    held_out: set[str] = set()

    def take(cluster: Sequence[VideoRow], classes: Counter[str]) -> None:
        taken.update(classes)
        left.subtract(classes)
        held_out.update(row.id for row in cluster)

    def spared(classes: Counter[str]) -> bool:
        return all(left[name] > count for name, count in classes.items())

    def gain(classes: Counter[str]) -> int:
        """How much nearer to the wanted numbers this brings them, summed over the classes."""
        return sum(abs(taken[n] - wanted[n]) - abs(taken[n] + count - wanted[n]) for n, count in classes.items())

    for cluster, classes in clusters:
        if gain(classes) > 0 and spared(classes):
            take(cluster, classes)
    # A class of which every group is more than twice its share has got none yet: the smallest one does least harm.
    for cluster, classes in sorted(clusters, key=lambda item: len(item[0])):
        if any(not taken[name] for name in classes) and spared(classes):
            take(cluster, classes)
    return frozenset(held_out)


def straddling(sides: Iterable[tuple[str, Iterable[VideoRow]]]) -> dict[str, tuple[str, ...]]:
    """Groups with videos on several sides -> the names of those sides, both sorted."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, rows in sides:
        for row in rows:
            if row.group:
                found[row.group].add(name)
    return {group: tuple(sorted(names)) for group, names in sorted(found.items()) if len(names) > 1}


def _clusters(rows: Iterable[VideoRow]) -> list[list[VideoRow]]:
    """Rows that have to stay together, by a file or a group that they share, directly or through others."""
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(of: tuple[str, str]) -> tuple[str, str]:
        parent.setdefault(of, of)
        while parent[of] != of:
            parent[of] = of = parent[parent[of]]
        return of

    rows = list(rows)
    for row in rows:
        if row.group:
            parent[root(("group", row.group))] = root(("file", row.uri))
    clusters: defaultdict[tuple[str, str], list[VideoRow]] = defaultdict(list)
    for row in rows:
        clusters[root(("file", row.uri))].append(row)
    return sorted(clusters.values(), key=_rank)


def _rank(cluster: list[VideoRow]) -> bytes:
    return hashlib.blake2b(min(row.id for row in cluster).encode(), digest_size=16).digest()


def _named(catalog: Catalog, name: str, field: str) -> CatalogView:
    view = catalog.view(name)
    if len(view):
        return view
    if name in catalog.splits:
        raise ConfigError(f"{field}: no video of split {name!r} can be used; `essp catalog show --problems` says why")
    there = suggested(name, [split or "(none)" for split in catalog.splits])
    raise ConfigError(f"{field}: the catalog has no split {name!r}; {there}")


def _optional(catalog: Catalog, name: str | None, default: str | None, field: str) -> CatalogView | None:
    if name is None:
        return None
    canonical = canonical_split(name)
    if canonical == default and canonical not in catalog.splits:
        return None
    return _named(catalog, canonical, field)

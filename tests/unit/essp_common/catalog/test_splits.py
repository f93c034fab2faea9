"""Which videos are for training, validation and test: what a job's spec says."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.split_names import canonical_split
from essp_common.catalog.splits import carve, consumed_view, splits_of, straddling
from essp_common.errors import ConfigError
from essp_common.job.data_spec import DataSpec
from tests.harness.catalog_rows import row
from tests.harness.refused import refused


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("val", "validation"),
        ("Training", "train"),
        (" TEST ", "test"),
        ("train_val", "train"),
        ("Train+Val", "train"),
        ("fold-3", "fold-3"),
        ("Fold", "Fold"),
    ],
)
def test_splits_have_one_name(name: str, kept: str) -> None:
    assert canonical_split(name) == kept


def test_splits_that_the_catalog_has_are_taken_as_they_are() -> None:
    catalog = Catalog((row("a/1"), row("a/2", "validation"), row("a/3", "test")))
    splits = splits_of(catalog, DataSpec(validation="val"))
    assert not splits.carved
    assert splits.test is not None
    assert [v.rows[0].id for v in (splits.train, splits.validation, splits.test)] == ["a/1", "a/2", "a/3"]


def test_a_missing_validation_split_is_carved_and_a_missing_test_left_out() -> None:
    catalog = Catalog(tuple(row(f"{c}/{n}") for c in "ab" for n in range(20)))
    splits = splits_of(catalog, DataSpec(validation_fraction=0.25))
    assert splits.carved
    assert splits.test is None
    assert Counter(r.class_name for r in splits.validation.rows) == {"a": 5, "b": 5}
    ids = [r.id for view in (splits.train, splits.validation) for r in view.rows]
    assert sorted(ids) == sorted(r.id for r in catalog.rows)
    assert splits_of(catalog, DataSpec(validation=None, test=None)).carved


def test_loops_train_on_all_where_nothing_is_set_aside() -> None:
    catalog = Catalog(tuple(row(f"{c}/{n}") for c in "ab" for n in range(4)))
    assert len(consumed_view(catalog, DataSpec(validation_fraction=0)).rows) == 8
    assert len(consumed_view(catalog, DataSpec(validation_fraction=0.25)).rows) == 6
    with refused("data.validation_fraction", "missing"):
        consumed_view(catalog, DataSpec(validation_fraction=0, consumed="validation"))
    with refused("data.validation_fraction", "missing"):
        splits_of(catalog, DataSpec(validation_fraction=0))
    with_split = Catalog((row("a/1"), row("a/2", "validation")))
    assert len(splits_of(with_split, DataSpec(validation_fraction=0)).validation.rows) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataSpec(train="learn"), r"data.train: the catalog has no split 'learn'; there are: \(none\), test, train"),
        (DataSpec(validation="fold-2"), "data.validation: the catalog has no split 'fold-2'"),
        (DataSpec(test="final"), "data.test: the catalog has no split 'final'"),
        (DataSpec(test="test"), "data.test: no video of split 'test' can be used"),
    ],
)
def test_a_split_that_is_not_there_is_named_with_those_that_are(data: DataSpec, message: str) -> None:
    rows = (row("a/1"), row("a/2"), row("a/3", "test", error="damaged: x"), row("a/4", ""))
    with pytest.raises(ConfigError, match=message):
        splits_of(Catalog(rows), data)


def test_too_few_videos_to_set_any_aside_is_said() -> None:
    with pytest.raises(ConfigError, match=r"no class of split 'train' has two files"):
        splits_of(Catalog((row("a/1"), row("b/1"))), DataSpec())


files = st.lists(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=25
)  # each file: the classes of its segments


@given(files, st.floats(0.01, 0.99))
def test_carving_keeps_files_together_and_every_class_in_training(segments: list[list[str]], fraction: float) -> None:
    rows = [
        row(f"{name}/{number}#{place}", uri=f"file:///{number}")
        for number, classes in enumerate(segments)
        for place, name in enumerate(classes)
    ]
    held_out = carve(tuple(rows), fraction)
    sides = {(r.uri, r.id in held_out) for r in rows}
    assert len(sides) == len({r.uri for r in rows}), "no file on both sides"
    assert {r.class_name for r in rows if r.id not in held_out} == {r.class_name for r in rows}
    assert carve(tuple(reversed(rows)), fraction) == held_out


@given(st.integers(2, 60), st.floats(0.01, 0.99))
def test_carving_takes_its_share_of_each_class(count: int, fraction: float) -> None:
    held_out = carve(tuple(row(f"a/{n}") for n in range(count)), fraction)
    assert len(held_out) == min(count - 1, max(1, round(count * fraction)))


groups = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", *"pqrstu"]), st.integers(0, 9)), min_size=1, max_size=60
)
"""Of each row: class, group and file."""


@given(groups, st.floats(0.01, 0.99))
def test_carving_keeps_groups_together(drawn: list[tuple[str, str, int]], fraction: float) -> None:
    rows = [
        replace(row(f"{name}/{place}", uri=f"file:///{name}{file}"), group=group)
        for place, (name, group, file) in enumerate(drawn)
    ]
    held_out = carve(tuple(rows), fraction)
    catalog = Catalog(tuple(rows))
    aside = np.array([r.id in held_out for r in catalog.rows])
    sides = [("train", catalog.rows.where(~aside)), ("validation", catalog.rows.where(aside))]
    assert straddling(sides) == {}
    assert len({(r.uri, r.id in held_out) for r in rows}) == len({r.uri for r in rows})
    assert {r.class_name for r in sides[0][1]} == {r.class_name for r in rows}
    assert carve(tuple(reversed(rows)), fraction) == held_out


@given(st.lists(st.integers(1, 30), min_size=2, max_size=30), st.floats(0.05, 0.5))
def test_carving_comes_as_near_to_its_share_as_a_group_is_large(sizes: list[int], fraction: float) -> None:
    rows = [replace(row(f"a/{g}-{n}"), group=f"g{g}") for g, size in enumerate(sizes) for n in range(size)]
    held_out = carve(tuple(rows), fraction)
    wanted = max(1, round(len(rows) * fraction))
    assert held_out
    assert abs(len(held_out) - wanted) <= max(sizes)


def test_classes_stay_in_balance_as_far_as_groups_allow() -> None:
    """Names as in UCF-101: of each class 25 groups of 4 to 7 videos."""
    rows = [
        replace(row(f"c{c}/v_g{g:02}_c{n}"), group=f"c{c}_g{g:02}")
        for c in range(10) for g in range(25) for n in range(4 + (c * g) % 4)
    ]  # fmt: skip
    held_out = carve(tuple(rows), 0.15)
    shares: defaultdict[str, list[bool]] = defaultdict(list)
    for r in rows:
        shares[r.class_name].append(r.id in held_out)
    assert all(abs(sum(part) - 0.15 * len(part)) <= 4 for part in shares.values())


def test_carving_does_not_follow_the_order_of_names() -> None:
    held_out = carve(tuple(row(f"a/{n:03}") for n in range(100)), 0.2)
    assert held_out != {f"a/{n:03}" for n in range(20)}
    moved = carve(tuple(row(f"a/{n:03}", uri=f"s3://bucket/{n}") for n in range(100)), 0.2)
    assert moved == held_out, "a data set that is moved keeps its validation videos"

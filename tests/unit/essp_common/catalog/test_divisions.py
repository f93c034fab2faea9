"""Divisions of a catalog: by a column of the source, and by what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.divisions import divided
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.schema import PLANNED
from essp_common.catalog.splits import splits_of
from essp_common.job.data_spec import DataSpec
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.records.rows import open_data
from essp_common.wiring import Stores
from tests.harness.refused import refused

SPLITS = st.sampled_from(["train", "test", "val", "", "Training"])
CANONICAL = {"val": "validation", "Training": "train"}


def row(number: int, split: str, group: str = "", **meta: object) -> VideoRow:
    extra = json.dumps(meta) if meta else ""
    return VideoRow(
        f"v{number:03}",
        f"file:///v{number:03}",
        "c",
        split,
        1,
        "e",
        width=64,
        height=48,
        frame_count=9,
        last_frame=8,
        group=group,
        extra=extra,
    )


@given(st.lists(st.tuples(SPLITS, SPLITS), min_size=1, max_size=30))
def test_a_column_says_the_split_of_each_video_and_nothing_else_changes(splits: list[tuple[str, str]]) -> None:
    rows = [row(n, first, split_2=second) for n, (first, second) in enumerate(splits)]
    found = divided(Catalog(rows), DataSpec(split_column="split_2"))
    wanted = [replace(one, split=CANONICAL.get(second, second)) for one, (_, second) in zip(rows, splits, strict=True)]
    assert list(found.rows) == wanted


@given(st.lists(st.sampled_from(["", "a", "b", "c d"]), min_size=1, max_size=30))
def test_the_videos_of_one_group_are_tested_on_and_all_others_trained_on(groups: list[str]) -> None:
    rows = [row(n, "validation", group) for n, group in enumerate(groups)]
    for left_out in {*groups} - {""}:
        found = divided(Catalog(rows), DataSpec(left_out={"group": left_out}))
        assert [one.split for one in found.rows] == ["test" if group == left_out else "train" for group in groups]


def test_without_a_division_the_catalog_stays_as_it_is() -> None:
    catalog = Catalog([row(0, "train")])
    assert divided(catalog, DataSpec()) is catalog


def test_a_column_of_the_source_may_be_left_out_by_and_a_video_without_it_is_trained_on() -> None:
    rows = [row(0, "train", scene=1), row(1, "train", scene=2), row(2, "test")]
    found = divided(Catalog(rows), DataSpec(left_out={"scene": "2"}))
    assert [one.split for one in found.rows] == ["train", "test", "train"]


def test_what_the_catalog_does_not_have_is_named() -> None:
    catalog = Catalog([row(0, "train", "p1", split_1="train"), row(1, "train", "p2", split_1="test")])
    with refused("data.split_column", "unknown"):
        divided(catalog, DataSpec(split_column="split_2"))
    with refused("data.left_out", "unknown"):
        divided(catalog, DataSpec(left_out={"group": "p3"}))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"split_column": "split_2", "left_out": {"group": "a"}}, "not both"),
        ({"left_out": {"group": "a"}, "test": "holdout"}, "leave `train` and `test` as they are"),
        ({"left_out": {"group": "a", "person": "b"}}, "at most 1"),
        ({"records": "file:///r", "split_column": "split_2"}, "records have none"),
    ],
)
def test_divisions_that_contradict_are_refused(data: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        DataSpec.model_validate(data)


def test_a_job_reads_its_division_whatever_columns_it_asks_for(tmp_path: Path) -> None:
    rows = [row(n, "train", f"g{n}", split_2="test" if n == 3 else "train") for n in range(4)]
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    spec = JobSpec.model_validate(
        {
            "name": "j",
            "output": "file:///out",
            "data": {"catalog": f"file://{tmp_path}/set.parquet", "split_column": "split_2"},
            "trainers": {"rgb": {"stream": "rgb"}},
        }
    )
    for columns in (None, PLANNED):
        splits = splits_of(open_data(spec, Stores(("file:///",)), columns), spec.data)
        assert splits.test is not None
        assert [one.id for one in splits.test.rows] == ["v003"]
        assert len(splits.train) + len(splits.validation) == 3

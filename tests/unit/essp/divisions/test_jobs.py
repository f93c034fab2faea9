"""The jobs of the divisions of a data set: what they are called, and what they start from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.divisions.jobs import Division, of_folds, of_splits
from essp_common.artifacts import layout
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.job.fields import plain_name
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores
from tests.harness.refused import refused

STORES = Stores(("file:///",))


def job(folder: Path, weights: str | None = None, **data: object) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "ut",
            "output": f"file://{folder}/runs/ut",
            "data": {"catalog": f"file://{folder}/set.parquet", **data},
            "trainers": {"rgb": {"stream": "rgb", "weights": weights}},
        }
    )


def write_groups(folder: Path, groups: list[str], **more: object) -> None:
    rows = [
        VideoRow(
            f"{n:02}", f"file:///{n}", "c", "train", 1, "e", width=8, height=8, frame_count=9, last_frame=8, group=g
        )
        for n, g in enumerate(groups)
    ]
    write_catalog(DirectoryStore(str(folder)), "set.parquet", Catalog(rows))


def told(divisions: tuple[Division, ...]) -> list[tuple[str, str, str, str]]:
    return [(each.name, each.label, each.spec.name, each.spec.output.rpartition("/runs/")[2]) for each in divisions]


def test_numbers_are_columns_and_other_words_are_names_of_columns(tmp_path: Path) -> None:
    found = of_splits(job(tmp_path, test=None), "1, 2,holdout", STORES)
    assert told(found) == [
        ("split-1", "1", "ut-split-1", "ut/split-1"),
        ("split-2", "2", "ut-split-2", "ut/split-2"),
        ("split-holdout", "holdout", "ut-split-holdout", "ut/split-holdout"),
    ]
    assert [each.spec.data.split_column for each in found] == ["split_1", "split_2", "holdout"]
    assert all(each.spec.data.test == "test" for each in found), "though the catalog's own split has none"
    alike = [each.spec.model_dump(exclude={"name": True, "output": True, "data": {"split_column"}}) for each in found]
    assert alike == 3 * alike[:1]


def test_each_group_is_left_out_once(tmp_path: Path) -> None:
    write_groups(tmp_path, ["seq2", "seq1", "Seq 1", "", "seq2"])
    found = of_folds(job(tmp_path), "group", STORES)
    assert [each.spec.data.left_out for each in found] == [{"group": name} for name in ("Seq 1", "seq1", "seq2")]
    names = [each.name for each in found]
    assert names[1:] == ["fold-seq1", "fold-seq2"]
    assert names[0].startswith("fold-seq-1-")


def test_folds_come_as_people_count(tmp_path: Path) -> None:
    write_groups(tmp_path, ["10", "2", "02", "seq10", "seq9", "²", "9" * 30])
    order = [each.label for each in of_folds(job(tmp_path), "group", STORES)]
    assert order == ["02", "2", "10", "9" * 30, "seq9", "seq10", "²"]


@given(st.lists(st.text(min_size=1, max_size=40), min_size=2, max_size=20, unique=True))
def test_different_values_give_different_names_that_outputs_can_have(values: list[str]) -> None:
    from essp.divisions.jobs import _plain

    names = [_plain(value) for value in values]
    assert len(set(names)) == len(names)
    assert [plain_name(f"job-fold-{name}") for name in names]


def test_what_is_no_division_is_said(tmp_path: Path) -> None:
    write_groups(tmp_path, ["one", ""])
    with refused("--splits"):
        of_splits(job(tmp_path), "1,1", STORES)
    write_groups(tmp_path / "two", ["one", "two"])
    with pytest.raises(ConfigError, match=r"^--folds: data\..*leave `train` and `test` as they are$"):
        of_folds(job(tmp_path / "two", test="holdout"), "group", STORES)
    with pytest.raises(ConfigError, match="has a division already"):
        of_splits(job(tmp_path, split_column="split_1"), "1,2", STORES)
    with refused("--folds", "range"):
        of_folds(job(tmp_path), "group", STORES)
    with pytest.raises(ConfigError, match=r"no column 'person', which --folds names; it has: group"):
        of_folds(job(tmp_path), "person", STORES)
    with pytest.raises(ConfigError, match=r"make one with `essp catalog build`"):
        of_folds(job(tmp_path / "nowhere"), "group", STORES)


def test_each_division_starts_from_its_own_and_none_from_what_has_seen_its_test_videos(tmp_path: Path) -> None:
    rgb = f"file://{tmp_path}/runs/rgb"
    starts = [
        each.spec.trainers["rgb"].weights for each in of_splits(job(tmp_path, f"{rgb}/trainers/r"), "1,2", STORES)
    ]
    assert starts == [f"{rgb}/split-1/trainers/r", f"{rgb}/split-2/trainers/r"]

    store = DirectoryStore(str(tmp_path / "runs" / "rgb"))
    store.put(layout.SPEC, job(tmp_path).model_dump_json().encode())
    with refused("trainers.rgb.weights", "conflict"):
        of_splits(job(tmp_path, f"{rgb}/trainers/r"), "1,2", STORES)
    store.put(layout.SPEC, job(tmp_path / "other").model_dump_json().encode())
    for each in of_splits(job(tmp_path, f"{rgb}/trainers/r"), "1,2", STORES):
        assert each.spec.trainers["rgb"].weights == f"{rgb}/trainers/r", "another data set"

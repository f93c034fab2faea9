"""`essp compare` and `essp export curves`: what differs between jobs, from their outputs alone."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essp.comparison.comparison import Comparison, by_chance, compare, differences
from essp.comparison.page import render
from essp.comparison.runs import read_all
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.artifacts import layout, scores
from essp_common.artifacts.scores import ScoreTable
from essp_common.cache.memory import MemoryCache
from essp_common.errors import NotFound
from essp_common.job.spec import JobSpec
from tests.harness.command_line import essp
from tests.harness.finished_job import BEST_EPOCH, FinishedJob, finished_job, history
from tests.harness.refused import refused
from tests.unit.essp.report.pages import STORES, Page

Edit = Callable[[dict[str, Any]], None]
Scored = Callable[[ScoreTable], ScoreTable]


def _lr(value: float) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        document["trainers"]["rgb"]["optimizer"] = {"lr": value}

    return edit


def _same(table: ScoreTable) -> ScoreTable:
    return table


def _right(table: ScoreTable) -> ScoreTable:
    """Scores that are right for every video."""
    odds = np.full(table.probabilities.shape, 0.01, np.float32)
    odds[np.arange(len(odds)), table.class_id] = 0.97
    return replace(table, probabilities=odds)


def ended(
    root: Path, name: str, edit: Edit = lambda _: None, scored: Scored = _same, test: bool = True, fuse: bool = True
) -> str:
    """The output of a job that has ended, or has not been fused yet."""
    job: FinishedJob = finished_job(root / name, test=test)
    document = job.spec.model_dump(mode="json", exclude_defaults=True) | {"name": name}
    edit(document)
    spec = JobSpec.model_validate(document)
    job.store.put(layout.SPEC, spec.model_dump_json().encode())
    for trainer in spec.trainers:
        job.store.put(layout.history(trainer), json.dumps([one.model_dump() for one in history()]).encode())
        for purpose, epoch in (("validation", BEST_EPOCH), ("test", 0))[: 1 + test]:
            key = layout.scores(trainer, purpose, epoch)
            scores.write(job.store, key, scored(scores.read(job.store, key)))
    if fuse:
        finals = final_checkpoints(job.store, spec)
        assert finals is not None
        assemble(job.store, MemoryCache(), spec.name, spec, finals, STORES)
    return str(job.root)


pytestmark = pytest.mark.usefixtures("sketched")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("runs")
    return ended(root, "a"), ended(root, "b", _lr(0.5), _right)


def compared(*outputs: str) -> Comparison:
    return compare(read_all(outputs, STORES))


def test_what_differs_is_told_and_nothing_else(two: tuple[str, str]) -> None:
    found = compared(*two)
    assert [(one.field, dict(one.values)) for one in found.settings] == [
        ("trainers.rgb.optimizer.lr", {"a": 0.01, "b": 0.5})
    ]
    assert found.notes == ()
    assert compared(two[0]).settings == ()


def test_figures_have_intervals_and_the_best_is_marked(two: tuple[str, str]) -> None:
    found = compared(*two)
    assert found.split == "test"
    assert [(one.job, one.trainer) for one in found.results] == [
        (job, trainer) for job in ("a", "b") for trainer in ("rgb", "flow", "fused")
    ]
    assert found.best is not None
    assert (found.best.job, found.best.trainer, found.best.figures["top1"]) == ("b", "fused", 1.0)
    rgb = found.results[0]
    assert rgb.interval is not None
    assert rgb.interval[0] < rgb.figures["top1"] < rgb.interval[1]


def test_jobs_are_compared_video_by_video_with_the_first(two: tuple[str, str]) -> None:
    (pair,) = compared(*two).pairs
    wrong = round(20 * (1 - compared(*two).results[2].figures["top1"]))
    assert (pair.first, pair.other, pair.videos) == ("a", "b", 20)
    assert (pair.only_first, pair.only_other) == (0, wrong)
    assert compared(two[0], two[0]).pairs[0].p == 1.0


@pytest.mark.parametrize(
    ("one", "other", "p"), [(0, 0, 1.0), (1, 0, 1.0), (5, 5, 1.0), (0, 5, 0.0625), (0, 10, 2 / 1024)]
)
def test_the_chance_of_a_difference_is_that_of_tossing_a_coin(one: int, other: int, p: float) -> None:
    assert by_chance(one, other) == pytest.approx(p) == by_chance(other, one)


def test_tens_of_thousands_of_differences_do_not_take_minutes() -> None:
    normal = math.erfc((400 - 1) / math.sqrt(2 * 48_400))  # the approximation for many, with its correction
    assert by_chance(24_000, 24_400) == pytest.approx(normal, rel=1e-4)


def _without_flow(document: dict[str, Any]) -> None:
    del document["trainers"]["flow"], document["streams"]["motion"]


def test_a_trainer_that_only_one_job_has_is_one_difference(two: tuple[str, str], tmp_path: Path) -> None:
    other = ended(tmp_path, "alone", _without_flow)
    found = {one.field: dict(one.values) for one in differences(read_all([two[0], other], STORES))}
    assert found == {"streams.motion": {"a": "flow"}, "trainers.flow": {"a": "small on motion"}}


def test_other_classes_are_told_and_not_compared(two: tuple[str, str]) -> None:
    first, other = read_all(two, STORES)
    assert other.run is not None
    model = other.run.model.model_copy(update={"classes": ("brick-left", "brick-right", "grass-left", "lawn")})
    found = compare([first, replace(other, run=replace(other.run, model=model))])
    assert (found.pairs, found.best) == ((), None)
    assert any("lawn" in note and "grass-right" in note for note in found.notes)


def test_other_videos_are_told_and_the_common_ones_compared(two: tuple[str, str], tmp_path: Path) -> None:
    def fewer(table: ScoreTable) -> ScoreTable:
        kept = np.array(["/0.mp4" not in video for video in table.video_id])
        return replace(
            table,
            video_id=tuple(video for video, keep in zip(table.video_id, kept, strict=True) if keep),
            class_id=table.class_id[kept],
            clip_index=table.clip_index[kept],
            probabilities=table.probabilities[kept],
        )

    found = compared(two[0], ended(tmp_path, "fewer", scored=fewer))
    assert found.pairs[0].videos == 16
    assert found.best is None, "figures of other videos have no best"
    assert any("20" in note and "16" in note for note in found.notes)


def test_without_a_test_split_all_are_compared_on_validation(two: tuple[str, str], tmp_path: Path) -> None:
    found = compared(two[0], ended(tmp_path, "untested", test=False))
    assert found.split == "validation"
    assert len(found.results) == 6
    assert any("untested" in note for note in found.notes)


def test_a_job_that_has_not_completed_has_settings_and_curves(two: tuple[str, str], tmp_path: Path) -> None:
    found = compared(ended(tmp_path, "half", _lr(0.2), fuse=False), two[1])
    assert [one.field for one in found.settings] == ["trainers.rgb.optimizer.lr"]
    assert {one.job for one in found.results} == {"b"}
    assert set(found.histories) == {"half rgb", "half flow", "b rgb", "b flow"}
    assert any("half" in note for note in found.notes)


def test_jobs_of_one_name_are_told_apart_by_their_outputs(two: tuple[str, str], tmp_path: Path) -> None:
    other = ended(tmp_path, "a", _lr(0.7))
    labels = [one.label for one in read_all([two[0], other], STORES)]
    assert labels == [two[0], other]


def test_the_page_has_all_of_it_and_stands_alone(two: tuple[str, str], tmp_path: Path) -> None:
    page = Page(render(compared(*two)))
    assert page.open == []
    assert ["trainers.rgb.optimizer.lr", "0.01", "0.5"] in page.rows
    pictures = [reference for reference in page.references if reference.startswith("data:image/png")]
    assert len(pictures) == 4, "loss and accuracy, light and dark"
    assert [row[:2] for row in page.rows if len(row) > 6 and row[1] == "fused"] == [["a", "fused"], ["b", "fused"]]


def test_the_command_prints_a_table_json_and_a_page(two: tuple[str, str], tmp_path: Path) -> None:
    done = essp("compare", *two, "--out", str(tmp_path / "compare.html"))
    assert "trainers.rgb.optimizer.lr" in done.stdout
    assert (tmp_path / "compare.html").read_text().startswith("<!doctype html>")
    document = json.loads(essp("compare", *two, "--json").stdout)
    assert document["settings"] == [{"field": "trainers.rgb.optimizer.lr", "values": {"a": 0.01, "b": 0.5}}]
    assert len(document["curves"]["a"]["rgb"]) == 4
    assert document["pairs"][0]["p"] <= 1


def test_what_cannot_be_compared_is_refused(two: tuple[str, str], tmp_path: Path) -> None:
    with refused("RUN", "missing"):
        essp("compare", two[0])
    with refused("RUN", "conflict"):
        essp("compare", two[0], two[0])
    with refused("--out", "invalid"):
        essp("compare", *two, "--out", str(tmp_path / "page.pdf"))
    with pytest.raises(NotFound):
        essp("compare", two[0], str(tmp_path))
    (tmp_path / "divisions.json").write_text("{}")
    with pytest.raises(NotFound, match="division"):
        essp("compare", two[0], str(tmp_path))


def test_curves_are_a_table_for_other_programs(two: tuple[str, str], tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(essp("export", "curves", *two).stdout)))
    assert len(rows) == 16, "two jobs, two trainers, two epochs of two phases"
    assert rows[0] == {
        **{"job": "a", "trainer": "rgb", "phase": "train", "epoch": "1"},
        **{"loss": "2.0", "top1": "0.3", "video_top1": "0.4"},
    }
    out = tmp_path / "curves.json"
    essp("export", "curves", two[0], "--json", "--out", str(out))
    assert json.loads(out.read_text())[-1]["epoch"] == 2
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "spec.json").write_text((Path(two[0]) / "spec.json").read_text())
    with pytest.raises(NotFound, match="epoch"):
        essp("export", "curves", str(tmp_path / "new"))

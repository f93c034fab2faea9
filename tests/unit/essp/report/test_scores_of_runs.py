"""The scores that a report shows are those that the model was fused from, or an error names them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from essp.report.facts import read_run
from essp.report.page import render
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.artifacts import layout, scores
from essp_common.artifacts.scores import ScoreTable
from essp_common.cache.memory import MemoryCache
from essp_common.errors import NotFound, PermanentError
from tests.harness.finished_job import JOB, score_table, swept
from tests.unit.essp.report.pages import STORES, Page, fused

pytestmark = [pytest.mark.slow, pytest.mark.lane("promises")]


def test_members_that_a_sweep_does_not_keep_are_reported_and_not_fused(tmp_path: Path) -> None:
    job = swept(tmp_path, keep=1)
    job.store.put(layout.SPEC, job.spec.model_dump_json().encode())
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    model = assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)
    told = read_run(job.store, STORES)
    assert told.scores.keys() == job.spec.trainers.keys()
    assert model.test is not None
    assert np.mean(told.predicted == told.fused.class_id) == pytest.approx(model.test.fused["top1"])
    text = Page(render(told, {}, {})).text
    assert all(name in text for name in job.spec.trainers)


def test_scores_that_the_model_takes_and_that_are_lost_are_named(tmp_path: Path) -> None:
    """Rather than fused from those that are left, which would be figures of no model."""
    job = fused(tmp_path)
    shutil.rmtree(tmp_path / "trainers" / "flow")
    with pytest.raises(NotFound, match=r"test scores that are gone; restore from a backup: file://.*/trainers/flow$"):
        read_run(job.store, STORES)


OTHERS: dict[str, Callable[[ScoreTable], ScoreTable]] = {
    "of another trainer": lambda _: score_table("flow", "test"),
    "of another split": lambda _: score_table("rgb", "validation"),
    "of other classes": lambda table: replace(table, classes=("w", "x", "y", "z")),
    "of other videos": lambda table: replace(table, video_id=tuple(f"other/{name}" for name in table.video_id)),
    "of no video": lambda table: table.at(np.arange(0)),
    "of half of the videos": lambda table: table.at(np.arange(len(table) // 2)),
    "without labels": lambda table: replace(table, class_id=np.full_like(table.class_id, -1)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_scores_than_those_of_the_model_are_named(tmp_path: Path, other: str) -> None:
    """Rather than shown beside figures that are not theirs."""
    job, key = fused(tmp_path), layout.scores("rgb", "test", 0)
    scores.write(job.store, key, OTHERS[other](score_table("rgb", "test")))
    with pytest.raises(PermanentError, match=f"{re.escape(job.store.uri(key))} holds other scores"):
        read_run(job.store, STORES)

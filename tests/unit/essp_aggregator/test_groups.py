"""What the catalog of a job says of its validation videos: which are too alike to judge by each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_aggregator.assembly import assemble, final_checkpoints
from essp_aggregator.groups import groups_of
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.scores import name_of_clip
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import Unavailable
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from tests.harness.finished_job import CLASSES, JOB, VIDEOS_PER_CLASS, FinishedJob, finished_job

STORES = Stores(("file:///",))


def row(name: str, group: str = "", uri: str = "") -> VideoRow:
    return VideoRow(name, uri or f"file:///videos/{name}", "walk", "validation", 1, "", group=group, error="not read")


def job_with(root: Path, *rows: VideoRow) -> FinishedJob:
    catalog = f"file://{root}/catalog.parquet"
    write_catalog(*STORES.resolve(catalog), Catalog(rows))
    return finished_job(root / "run", catalog=catalog)


def model_of(job: FinishedJob) -> FusedModel:
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    return assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)


def test_videos_of_a_group_and_segments_of_a_file_are_alike(tmp_path: Path) -> None:
    rows = (
        *(row(f"a{number}.mp4", "person01") for number in range(3)),
        *(row(f"b.mp4#{number}", "", "file:///videos/b.mp4") for number in range(2)),
        row("c.mp4", "", ""),
        row("d.mp4", "person02"),
        row("left-out.mp4", "person01"),
    )
    videos = [own.id for own in rows[:-1]]
    found = groups_of(job_with(tmp_path, *rows).spec, STORES, videos)
    assert found.keys() == {"a0.mp4", "a1.mp4", "a2.mp4", "b.mp4#0", "b.mp4#1"}
    assert len({found[f"a{number}.mp4"] for number in range(3)}) == 1
    assert found["b.mp4#0"] == found["b.mp4#1"] != found["a0.mp4"]


def of_spans(job: FinishedJob) -> JobSpec:
    return job.spec.model_copy(update={"data": job.spec.data.model_copy(update={"targets": "spans"})})


def test_clips_of_one_video_are_alike_where_they_stand_for_themselves(tmp_path: Path) -> None:
    rows = (row("a frame 1.mp4", "person01"), row("b.mp4", "person01"), row("c.mp4"), row("d.mp4"))
    names = [name_of_clip(own.id, place) for own in rows for place in (0, 8)]
    found = groups_of(of_spans(job_with(tmp_path, *rows)), STORES, names)
    assert [found[name] == found[names[0]] for name in names] == [True] * 4 + [False] * 4
    assert found[names[4]] == found[names[5]] != found[names[6]] == found[names[7]]


def test_clips_of_one_video_are_alike_without_a_catalog(tmp_path: Path) -> None:
    names = [name_of_clip(video, place) for video in ("a", "b") for place in (0, 8)]
    found = groups_of(of_spans(finished_job(tmp_path)), STORES, names)
    assert found[names[0]] == found[names[1]] != found[names[2]] == found[names[3]]


def test_a_catalog_that_is_gone_has_no_groups_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert groups_of(finished_job(tmp_path).spec, STORES, ["a"]) == {}
    assert "absent.parquet" in caplog.text


def test_a_catalog_that_is_out_of_reach_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr("essp_aggregator.groups.open_data", away)
    with pytest.raises(Unavailable):
        groups_of(finished_job(tmp_path).spec, STORES, ["a"])


def test_a_job_is_fused_by_what_groups_leave_of_the_evidence(tmp_path: Path) -> None:
    """All its validation videos are of one person: nothing tells how strategies do with another one."""
    names = [f"validation/{name}/{take}.mp4" for name in CLASSES for take in range(VIDEOS_PER_CLASS)]
    job = job_with(tmp_path, *(row(name, "person01") for name in names))
    assert all(one.held_out_log_loss is None for one in model_of(job).strategies)
    other = job_with(tmp_path / "other", *(row(name) for name in names))
    assert all(one.held_out_log_loss is not None for one in model_of(other).strategies)

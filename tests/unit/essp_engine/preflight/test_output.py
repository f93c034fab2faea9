"""Where a job may not write, whether it begins anew or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.artifacts import layout
from essp_common.artifacts.removal import OfAnotherJob, write_owner
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigCode, ConfigError, Forbidden
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores
from essp_engine.preflight.output import ANYBODY, Asked
from essp_engine.preflight.preflight import Preflight, preflight
from tests.harness.fleet import make_job


def found(spec: JobSpec, folder: Path, fresh: bool = False, asked: Asked = ANYBODY, state: str = "") -> Preflight:
    return preflight(spec, Stores([f"file://{folder}"]), fresh, asked=asked, state=state)


def refusal(
    spec: JobSpec, folder: Path, fresh: bool = False, asked: Asked = ANYBODY, state: str = ""
) -> tuple[ConfigCode, str]:
    """Why the output is refused, and in which words."""
    with pytest.raises(ConfigError) as error:
        found(spec, folder, fresh, asked, state)
    assert error.value.field == "output"
    return error.value.code, error.value.problem


def left_in(spec: JobSpec, team: str = "") -> DirectoryStore:
    """The output of a job that has ended."""
    output = DirectoryStore.from_url(spec.output)
    write_owner(output, team)
    output.put(layout.SPEC, spec.model_dump_json(indent=2).encode())
    output.put("trainers/rgb/history.json", b"[]")
    return output


def at(job: JobSpec, folder: Path, name: str = "") -> JobSpec:
    return job.model_copy(update={"output": f"file://{folder}", "name": name or job.name})


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("there", "here"), [("out", "out/more"), ("out", "out/trainers/rgb/checkpoints"), ("runs/a/b", "runs"), ("a", "")]
)
def test_in_the_output_of_another_job_or_around_it(tmp_path: Path, there: str, here: str, fresh: bool) -> None:
    (tmp_path / "root").mkdir()
    job = make_job(tmp_path)
    left_in(at(job, tmp_path / "root" / there, "other"))
    code, words = refusal(at(job, tmp_path / "root" / here), tmp_path, fresh)
    assert code == "taken"
    assert "output of job other, file://" in words


def test_through_a_link_into_another_output(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    left_in(at(job, tmp_path / "other", "other"))
    (tmp_path / "link").symlink_to(tmp_path / "other")
    code, words = refusal(at(job, tmp_path / "link/more"), tmp_path)
    assert code == "taken"
    assert "is inside the output of job other" in words


def test_the_folder_of_a_division_is_in_the_output_of_its_job(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    left_in(job)
    found(at(job, tmp_path / "out/split-1", "small-split-1"), tmp_path)
    left_in(at(job, tmp_path / "out/split-1", "small-split-1"))
    found(job, tmp_path)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("folder", ["data", "data/videos", "data/videos/a"])
def test_the_folder_of_the_videos(tmp_path: Path, folder: str, fresh: bool) -> None:
    job = make_job(tmp_path)
    rows = [
        VideoRow(f"{name}/{n}.mp4", f"file://{tmp_path}/data/videos/{name}/{n}.mp4", name, "train", 9, "e",
                 width=64, height=48, frame_count=60, last_frame=59, seekable=True, keyframe_pts=(0,),
                 keyframe_frame=(0,), keyframe_offset=(0,))
        for name in "ab" for n in range(4)
    ]  # fmt: skip
    write_catalog(DirectoryStore(str(tmp_path)), "catalog.parquet", Catalog(rows))
    code, words = refusal(at(job, tmp_path / folder), tmp_path, fresh)
    assert code == "taken"
    assert "contains videos of the catalog" in words
    for beside in ("data/runs/x", "data/videos/runs", "data/video"):
        found(at(job, tmp_path / beside), tmp_path, fresh)


@pytest.mark.parametrize(
    ("catalog", "why"),
    [("out", "refused"), ("out/model/c.parquet", "taken"), ("out/spec.json", "taken"), ("o", "refused")],
)
def test_the_place_of_the_catalog(tmp_path: Path, catalog: str, why: ConfigCode) -> None:
    job = make_job(tmp_path)
    output = tmp_path / ("o/ut" if catalog == "o" else "out")
    (tmp_path / catalog).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "catalog.parquet").rename(tmp_path / catalog)
    moved = job.model_copy(
        update={
            "output": f"file://{output}",
            "data": job.data.model_copy(update={"catalog": f"file://{tmp_path}/{catalog}"}),
        }
    )
    assert refusal(moved, tmp_path)[0] == why
    assert (tmp_path / catalog).is_file()


def test_a_catalog_beside_what_the_job_writes_is_no_obstacle(tmp_path: Path) -> None:
    found(at(make_job(tmp_path), tmp_path), tmp_path)


@pytest.mark.parametrize("state", ["out", "out/state", ""])
def test_the_state_of_the_master(tmp_path: Path, state: str) -> None:
    code, words = refusal(make_job(tmp_path), tmp_path, state=f"file://{tmp_path}/{state}".rstrip("/"))
    assert code == "taken"
    assert "ESSP_STATE" in words


def test_a_link_that_leads_out(tmp_path: Path) -> None:
    """As `:validate` says it, and not the first write."""
    inner = tmp_path / "store"
    inner.mkdir()
    (tmp_path / "elsewhere").mkdir()
    job = make_job(inner)
    (inner / "out").symlink_to(tmp_path / "elsewhere")
    assert refusal(job, inner)[0] == "refused"
    (inner / "out").unlink()
    (inner / "out").mkdir()
    (inner / "out/trainers").symlink_to(tmp_path / "elsewhere")
    assert refusal(job, inner)[0] == "refused"


VISION, SPEECH, NOBODY = Asked("vision", admin=False), Asked("speech", admin=False), Asked("", admin=False)


@pytest.mark.parametrize(
    ("team", "asked", "may_continue", "may_remove"),
    [
        ("vision", VISION, True, True),
        ("vision", SPEECH, False, False),
        ("vision", NOBODY, False, False),
        ("vision", Asked("speech", admin=True), True, True),
        ("vision", ANYBODY, True, True),
        ("", NOBODY, True, True),
        ("", VISION, True, False),
    ],
)
def test_the_output_of_another_team(
    tmp_path: Path, team: str, asked: Asked, may_continue: bool, may_remove: bool
) -> None:
    """One of which no team is known, as those of earlier versions, goes on for all, and is removed by its like."""
    job = make_job(tmp_path)
    left_in(job, team)
    for fresh, may in ((False, may_continue), (True, may_remove)):
        if may:
            found(job, tmp_path, fresh, asked)
        else:
            with pytest.raises(Forbidden, match=r"holds a job of (no )?team"):
                found(job, tmp_path, fresh, asked)


def test_another_job_is_removed_if_it_was_named(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    left_in(at(job, tmp_path / "out", "other"))
    for asked in (ANYBODY, Asked(replaces="small"), Asked(replaces="third")):
        with pytest.raises(
            OfAnotherJob, match=r"output of another job, other, and would be removed .*1 object"
        ) as told:
            found(job, tmp_path, True, asked)
        assert told.value.job == "other"
    removes = found(job, tmp_path, True, Asked(replaces="other")).removes
    assert removes is not None
    assert removes.keys == ("trainers/rgb/history.json",)
    code, words = refusal(job, tmp_path)
    assert code == "taken"
    assert "differs in name" in words


def test_whoever_asks_is_asked_whether_another_job_may_go(tmp_path: Path) -> None:
    """Once, and only for a job that can begin."""
    job = make_job(tmp_path)
    left_in(at(job, tmp_path / "out", "other"))
    questions: list[OfAnotherJob] = []
    asked = Asked(confirm=questions.append)
    assert found(job, tmp_path, True, asked).removes is not None
    assert [question.job for question in questions] == ["other"]
    wrong = job.model_copy(update={"limits": job.limits.model_copy(update={"budget": 1})})
    with pytest.raises(ConfigError):
        found(wrong, tmp_path, True, asked)
    assert len(questions) == 1


def test_what_a_removal_leaves_is_not_written_over(tmp_path: Path) -> None:
    """That of a trainer the other job did not have, and what lies behind a link."""
    job = make_job(tmp_path)
    other = at(job, tmp_path / "out", "other").model_copy(update={"trainers": {"flow": job.trainers["rgb"]}})
    output = left_in(other)
    assert refusal(job, tmp_path, True, Asked(replaces="other"))[0] == "exists"
    (tmp_path / "out/trainers/rgb").rename(tmp_path / "mine")
    (tmp_path / "out/trainers/rgb").symlink_to(tmp_path / "mine")
    for held in (other, job):
        output.put(layout.SPEC, held.model_dump_json(indent=2).encode())
        code, words = refusal(job, tmp_path, True, Asked(replaces="other"))
        assert code == "exists"
        assert "trainers/rgb/history.json" in words
    (tmp_path / "out/trainers/rgb").unlink()
    output.put("report/thesis.tex", b"mine")
    assert (removes := found(job, tmp_path, True).removes) is not None
    assert removes.kept == ("report/thesis.tex",)

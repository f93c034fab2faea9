"""`essp job why` and `essp job dump`, of a job of a master and of an output."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.errors import ConfigError, NotFound
from essp_common.pb.v1.messages_pb2 import DIVERGED, TRAINER, Failed, Progress
from tests.harness.command_line import essp
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.refused import refused
from tests.harness.serving import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        made.master.start(made.job)
        made.complete()
        made.master.drain()
        made.master.run()  # until the history is written
        yield made


def test_the_story_of_a_clip_is_told_by_name_and_by_output(served: Served) -> None:
    by_name = json.loads(essp("job", "why", "small", "3", "--epoch", "2", "--server", served.url, "--json").stdout)
    by_output = json.loads(essp("job", "why", served.job.output, "3", "--epoch", "2", "--json").stdout)
    assert by_name == by_output
    assert [by_name[field] for field in ("purpose", "epoch", "index", "lacking")] == ["train", 1, 3, []]
    assert by_name["planned"]["video"].startswith("train/")
    assert "decoded" in [step["what"] for step in by_name["steps"]]
    shown = essp("job", "why", served.job.output, "3", "--epoch", "2").stdout
    assert shown.startswith(f"clip 3 of train, epoch 2: {by_name['planned']['video']}, from frame ")
    assert " UTC" not in shown.splitlines()[2]
    assert "used by trainer rgb" in shown


def test_the_clips_of_a_video_are_found_by_its_name(served: Served) -> None:
    output = served.job.output
    one = json.loads(essp("job", "why", output, "3", "--json").stdout)
    video = one["planned"]["video"]
    for name in (video, video.rpartition("/")[2]):
        stories = json.loads(essp("job", "why", output, "--video", name, "--json").stdout)
        assert one in stories
        assert {story["planned"]["video"].rpartition("/")[2] for story in stories} == {video.rpartition("/")[2]}
    with pytest.raises(NotFound, match="did you mean"):
        essp("job", "why", output, "--video", f"{video}x")
    other = json.loads(essp("job", "why", output, "0", "--purpose", "test", "--json").stdout)["planned"]["video"]
    with pytest.raises(NotFound, match=r"train, epoch 1 has no video .*; it is in test \(--purpose\)"):
        essp("job", "why", output, "--video", other)
    for neither in ([], ["3", "--video", video]):
        with refused("INDEX", "conflict"):
            essp("job", "why", output, *neither)


def test_a_clip_that_is_not_there_names_the_passes(served: Served) -> None:
    output = served.job.output
    with pytest.raises(
        NotFound, match="no clip 10 in train, epoch 1: that has 10 clips, counted from 0; the job has train"
    ):
        essp("job", "why", output, "10")
    with pytest.raises(
        NotFound, match=r"not a pass of this job; the job has train \(2 epochs\), validation \(2 epochs\), test"
    ):
        essp("job", "why", output, "0", "--epoch", "3")
    with refused("--purpose", "unknown"):
        essp("job", "why", output, "0", "--purpose", "training")


def test_a_clip_is_told_of_without_its_catalog(served: Served, tmp_path: Path) -> None:
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    told = essp("job", "why", served.job.output, "0", "--json")
    assert json.loads(told.stdout)["planned"] is None
    assert "the plan of the job cannot be made again" in told.stderr


def test_a_dump_has_all_that_is_known(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert essp("job", "dump", "small", "--server", served.url).stdout.startswith("small.zip: ")
    made = json.loads(essp("job", "dump", served.job.output, "--out", "again.zip", "--json").stdout)
    assert made == {"file": "again.zip", "bytes": (tmp_path / "again.zip").stat().st_size}
    for name in ("small.zip", "again.zip"):
        with zipfile.ZipFile(tmp_path / name) as archive:
            found = {part: archive.read(part).decode() for part in archive.namelist()}
        parts = {"about", "job", "status", "audit", "ledger", "timeline"}
        assert {*found} == {f"{part}.json" for part in parts} | {"history.jsonl"}
        assert json.loads(found["job.json"])["name"] == "small"
        assert json.loads(found["status.json"])["state"] == "completed"
        assert all(finding["holds"] is not False for finding in json.loads(found["audit.json"]))
        assert json.loads(found["history.jsonl"].splitlines()[0])["started"]
        assert json.loads(found["about.json"])["output"] == served.job.output
        assert json.loads(found["timeline.json"])["timeline"]["times"]


def test_a_dump_shows_no_passwords_and_signatures(tmp_path: Path) -> None:
    adapters = adapters_in(tmp_path)
    with closing(adapters):
        master, spec = master_over(adapters), make_job(tmp_path)
        master.start(spec)
        reason = "rgb: https://me:swordfish@host/w?X-Amz-Signature=swordfish was not read"
        failed = Progress(job=spec.name, worker="w", failed=Failed(stage=TRAINER, kind=DIVERGED, reason=reason))
        adapters.bus.publish(topics.PROGRESS, b"", failed.SerializeToString())
        while master.step(0):
            pass
        master.drain()
        master.run()
    essp("job", "dump", spec.output, "--out", str(tmp_path / "a.zip"))
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert "was not read" in parts["status.json"]
    assert "was not read" in parts["history.jsonl"]
    assert "swordfish" not in "".join(parts.values())
    assert json.loads(json.loads(parts["history.jsonl"].splitlines()[0])["started"]["snapshot"]["specJson"])["name"]


def test_what_cannot_be_dumped_says_so(served: Served, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        essp("job", "dump", served.job.output, "--out", str(tmp_path / "none" / "a.zip"))
    with pytest.raises(NotFound, match="holds no history of a job"):
        essp("job", "dump", str(tmp_path), "--out", str(tmp_path / "a.zip"))
    assert not (tmp_path / "a.zip").exists()
    (tmp_path / "mine.zip").write_text("not to be lost")
    with pytest.raises(ConfigError, match="File exists"):
        essp("job", "dump", served.job.output, "--out", str(tmp_path / "mine.zip"))
    assert (tmp_path / "mine.zip").read_text() == "not to be lost"


def test_a_job_that_extracts_has_one_pass_of_that_name(tmp_path: Path) -> None:
    """To its workers it is a prediction."""
    sampling, streams = {"every_frames": 3}, {"diff": {"feature": "frame_diff", "params": {"length": 2}}}
    spec = make_job(tmp_path, extract={}, trainers={}, epochs=1, sampling=sampling, streams=streams)
    adapters = adapters_in(tmp_path)
    with closing(adapters):
        master = master_over(adapters)
        status = master.start(spec)
        assert [phase.purpose for phase in status.phases] == ["extract"]
        master.drain()
        master.run()
    story = json.loads(essp("job", "why", spec.output, "0", "--purpose", "extract", "--json").stdout)
    assert story["purpose"] == "extract"
    assert story["planned"]
    with pytest.raises(NotFound, match=r"the job has extract \(1 epoch\)"):
        essp("job", "why", spec.output, "0")

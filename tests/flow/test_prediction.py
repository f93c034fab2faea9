"""From a trained job to answers about files: `essp predict`, and the report, on the output of a real run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import essp
from essp.api.prediction import find, job_of, probe
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common import topics
from essp_common.artifacts import layout, scores
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.errors import PermanentError
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.planning.even import Uniform
from essp_engine.preflight.preflight import preflight
from essp_predictor import stream as stream_module
from tests.harness.embedded_jobs import complete, finish
from tests.harness.journeys import job_text
from tests.harness.rounding import STORED, TOLERANCE, in_double_precision

STORES = Stores(("file:///",))


@pytest.fixture(scope="module")
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture(scope="module")
def trained(catalog: Path, tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    """A job that is done; tests read what it left."""
    output = f"file://{tmp_path_factory.mktemp('trained')}"
    spec = parse_spec(job_text("tiny", output=output, catalog=f"file://{catalog}", epochs=1))
    with in_double_precision(), Embedded(spec, Settings()) as job:
        complete(job)
    return spec


@pytest.mark.usefixtures("double_precision")
def test_test_videos_get_the_scores_that_the_test_pass_gave(
    trained: JobSpec, videos: Path, runner: CliRunner, tmp_path: Path
) -> None:
    """Prediction sees what evaluation saw: the same clips, through the same decoders and extractors."""
    broken = tmp_path / "broken.mp4"
    broken.write_bytes((videos / "test" / "left" / "0.mp4").read_bytes()[:500])
    done = runner.invoke(
        app, ["predict", str(videos / "test"), str(broken), "--model", trained.output, "--json", "--top", "2"]
    )
    assert done.exit_code == 1, "one of them is broken"
    answers = {Path(a["video"]): a for a in json.loads(done.stdout)["videos"]}
    assert answers[broken]["class"] is None
    assert answers[broken]["error"]

    store = STORES.under(trained.output)
    _, model = open_model(STORES, trained.output)
    parts = {
        member.trainer: scores.by_video(scores.read(store, layout.scores(member.trainer, "test", 0)))
        for member in model.members
    }
    assert model.rule is not None
    expected = scores.fuse(parts, model.weights, model.rule)
    assert len(expected) == 4
    for video, row in zip(expected.video_id, expected.probabilities, strict=True):
        answer = answers[videos / video]
        assert {top["class"]: top["score"] for top in answer["top"]} == {
            name: pytest.approx(row[c], abs=TOLERANCE + STORED) for c, name in enumerate(expected.classes)
        }
        assert (answer["clips"], answer["error"]) == (2, None)


def test_where_in_a_video_is_said_in_seconds(trained: JobSpec, videos: Path, runner: CliRunner) -> None:
    """The videos are of one class throughout."""
    video = videos / "test" / "left" / "0.mp4"
    done = runner.invoke(
        app, ["predict", str(video), "--model", trained.output, "--segments", "--every", "0.2s", "--json"]
    )
    assert done.exit_code == 0, done.output
    [answer] = json.loads(done.stdout)["videos"]
    assert answer["clips"] == 5  # 21 places, 5 frames apart
    assert answer["segments"]
    row = probe(find([str(video)], STORES), Settings())[0]
    for found in answer["segments"]:
        assert 0 <= found["start_s"] < found["end_s"] <= row.frame_count / row.fps + 1e-6


def test_a_predict_job_that_fails_half_way_goes_on_where_it_was(
    trained: JobSpec, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved clips are neither decoded nor scored again, and the answers are those of an uninterrupted job."""
    monkeypatch.setattr(topics, "BLOCK_CLIPS", 2)  # a video
    monkeypatch.setattr(stream_module, "_SAVE_S", 0.0)
    _, model = open_model(STORES, trained.output)
    rows = probe(find([str(videos / "test")], STORES), Settings())
    save = PartialScores.save
    saved: list[tuple[str, int]] = []

    def failing(self: PartialScores, stream: str, blocks: Sequence[int], part: ScoredPart) -> None:
        if len(saved) >= 3:  # by either stream
            raise PermanentError("the store is gone")
        save(self, stream, blocks, part)
        saved.append((stream, 2 * (blocks[-1] + 1)))

    answers = {}
    for name in ("whole", "parts"):
        output = f"file://{tmp_path}/{name}"
        spec = job_of(model, trained.output, output)
        write_catalog(STORES.under(output), "catalog.parquet", Catalog(tuple(rows)))
        if name == "parts":
            with monkeypatch.context() as patched:
                patched.setattr(PartialScores, "save", failing)
                assert state_of(spec) is JobState.FAILED
            far = {f"predictor.{stream}": Position(0, stop) for stream, stop in sorted(saved)}
            assert preflight(spec, STORES).resume.start == far
        assert state_of(spec) is JobState.COMPLETED
        answers[name] = STORES.under(output).get(layout.PREDICTIONS)
        assert not list(STORES.under(output).list(layout.PARTS)), "nothing but results is left"
    assert answers["whole"] == answers["parts"]


def test_a_predict_job_that_names_its_model_alone_has_the_streams_of_it(
    trained: JobSpec, catalog: Path, tmp_path: Path
) -> None:
    """Also flow, for which an extractor has to be started."""
    document = {
        "name": "short",
        "output": f"file://{tmp_path}/predicted",
        "data": {"catalog": f"file://{catalog}"},
        "predictor": {"model": trained.output},
    }
    assert state_of(JobSpec.model_validate(document)) is JobState.COMPLETED


def state_of(spec: JobSpec) -> JobState:
    """How a job ends."""
    with Embedded(spec, Settings()) as job:
        finish(job)
        return job.status().state


@pytest.mark.usefixtures("sketched")
def test_a_report_is_made_of_a_real_run(trained: JobSpec, runner: CliRunner) -> None:
    done = runner.invoke(app, ["report", trained.output.removeprefix("file://")])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"{trained.output}/report/report.html"
    store = STORES.under(trained.output)
    names = {info.key.removeprefix(layout.REPORT) for info in store.list(layout.REPORT)}
    assert names == {"report.html", "loss.png", "accuracy.png", "confusion.png", "samples.png"}
    page = store.get(layout.REPORT + "report.html").decode()
    assert "fused top-1, test" in page
    assert page.count("data:image/png;base64,") == 8


def test_the_function_gives_the_scores_of_the_command(trained: JobSpec, videos: Path, runner: CliRunner) -> None:
    folder, model = videos / "test", trained.output.removeprefix("file://")
    done = runner.invoke(app, ["predict", str(folder), "--model", model, "--json", "--top", "9"])
    assert done.exit_code == 0, done.output
    answers = essp.predict(folder, model)
    assert [
        {"video": a.video, "class": a.class_name, "top": a.scores, "clips": a.clips, "error": a.error} for a in answers
    ] == [
        {
            **{key: a[key] for key in ("video", "class", "clips", "error")},
            "top": {t["class"]: t["score"] for t in a["top"]},
        }
        for a in json.loads(done.stdout)["videos"]
    ]


def test_a_video_is_answered_as_often_as_it_is_named(trained: JobSpec, videos: Path, tmp_path: Path) -> None:
    """And looked at once."""
    one, other = (str(videos / "test" / name / "0.mp4") for name in ("left", "right"))
    given = [one, other, f"file://{one}", one, str(tmp_path / "none.mp4"), str(tmp_path / "none.mp4")]
    answers = essp.predict(given, trained.output, segments=True)
    assert [answer.video for answer in answers] == given
    for answer in (answers[2], answers[3]):
        assert (answer.scores, answer.clips, answer.segments) == (
            answers[0].scores,
            answers[0].clips,
            answers[0].segments,
        )
    assert answers[0].segments
    assert answers[1].scores != answers[0].scores
    assert [answer.error for answer in answers[4:]] == [answers[4].error] * 2


def test_a_second_interrupt_leaves_nothing_of_it(
    trained: JobSpec, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It met the end of the job, which the first one had begun. The check for leaks sees what has stayed."""
    end = Embedded._close

    def interrupted(embedded: Embedded) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end(embedded)

    monkeypatch.setattr(Embedded, "_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        essp.predict(videos / "test", trained.output)


def test_a_loaded_model_gives_the_scores_of_the_job(trained: JobSpec, videos: Path) -> None:
    """Decoded, extracted, scored and fused by the functions of `essp`, one after the other."""
    video = videos / "test" / "left" / "0.mp4"
    [answer] = essp.predict(video, trained.output)
    model = essp.load_model(trained.output)
    row = probe(find([str(video)], STORES), Settings())[0]
    view = Catalog((row,)).view(None)
    plan = Uniform(view, model.clip, model.clips_per_video)
    starts = [plan.clip(index).first_frame for index in range(len(plan))]
    clips = essp.decode(video, starts, clip=model.clip)
    scores = {
        name: np.mean([m.score(essp.compute_feature(clip, m.feature, **m.params)) for clip in clips], axis=0)
        for name, m in model.streams.items()
    }
    assert dict(zip(model.classes, model.fuse(scores)[0], strict=True)) == pytest.approx(answer.scores, abs=1e-5)

"""From a trained job to answers about files: `essp predict`, and the report, on the output of a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp_common import layout, scores
from essp_common.config import Settings
from essp_common.model import open_model
from essp_common.spec import JobSpec
from essp_common.wiring import Stores
from services.cli.main import app
from services.local.composition import Embedded
from services.master.status import JobState
from tests.flow.conftest import MakeJob

STORES = Stores(("file:///",))


@pytest.fixture(scope="module")
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture
def trained(make_job: MakeJob) -> JobSpec:
    spec = make_job(epochs=1)
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.05):
            pass
        assert job.status().state is JobState.COMPLETED, job.status().reason
    return spec


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
    expected = scores.fuse(parts, model.weights, model.rule)
    assert len(expected) == 4
    for video, row in zip(expected.video_id, expected.probabilities, strict=True):
        answer = answers[videos / video]
        assert {top["class"]: top["score"] for top in answer["top"]} == {
            name: pytest.approx(row[c], abs=1e-5) for c, name in enumerate(expected.classes)
        }
        assert (answer["clips"], answer["error"]) == (2, None)


def test_a_report_is_made_of_a_real_run(trained: JobSpec, runner: CliRunner) -> None:
    done = runner.invoke(app, ["report", trained.output.removeprefix("file://")])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == f"{trained.output}/report/report.html"
    store = STORES.under(trained.output)
    names = {info.key.removeprefix(layout.REPORT) for info in store.list(layout.REPORT)}
    assert names == {"report.html", "curves.png", "confusion.png", "samples.png"}
    page = store.get(layout.REPORT + "report.html").decode()
    assert "fused top-1, test" in page
    assert page.count("data:image/png;base64,") == 6

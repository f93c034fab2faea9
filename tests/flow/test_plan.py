"""`essp plan` on a real job: every part is measured, and nothing is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from tests.harness.http_server import ClosingHTTPServer
from tests.harness.journeys import job_text
from tests.harness.refused import refused


@pytest.fixture
def collector() -> Iterator[Mock]:
    """Is called with the path of each request; `url` is where."""
    asked = Mock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ClosingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        asked.url = f"http://127.0.0.1:{server.server_port}"
        yield asked
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("sketched")
def test_each_part_of_a_job_is_measured(
    catalog: Path, tmp_path: Path, collector: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = {name: tmp_path / name.lower() for name in ("TENSORBOARD", "MLFLOW", "BURST")}
    monkeypatch.setenv("ESSP_TENSORBOARD", str(elsewhere["TENSORBOARD"]))
    monkeypatch.setenv("ESSP_MLFLOW", f"file://{elsewhere['MLFLOW']}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("ESSP_BURST", f"file://{elsewhere['BURST']}?bytes=1GiB")
    monkeypatch.setenv("ESSP_TRACES", collector.url)
    monkeypatch.setenv("ESSP_TRACE_SHARE", "1")
    (tmp_path / "job.yaml").write_text(
        job_text("tiny", output=f"file://{tmp_path}/run", catalog=f"file://{catalog}", epochs=50)
    )
    line = ["plan", str(tmp_path / "job.yaml"), "--seconds", "1", "--plot", str(tmp_path / "plan.png"), "--json"]
    line += ["--against", "extract", "--videos", "1000"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    measured = facts["measured"]
    trainers = facts["trainers"]
    assert {f"{part}.{name}" for part in ("feed", "trainer") for name in trainers} < set(measured["milliseconds"])
    assert {pool["name"] for pool in facts["pools"]} < set(measured["milliseconds"])
    assert measured["clips"] > 0
    assert (facts["between"] is None) == measured["enough"]
    assert all(count > 0 for count in measured["bytes"].values())
    assert facts["simulated_clips_per_s"] > 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert facts["against"]["data"]["videos"] == 1000
    assert all(count > 0 for count in facts["against"]["extract"]["bytes"].values())
    assert not (tmp_path / "run").exists()
    assert [name for name, place in elsewhere.items() if place.exists()] == []
    assert not collector.called


def test_where_it_cannot_be_drawn_is_said_before_it_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), "--plot", str(tmp_path / "nowhere/plan.png")])
    assert "there is no folder" in str(done.exception)


def test_a_prediction_has_nothing_to_plan(catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"name: p\noutput: {tmp_path}/out\ndata: {{catalog: {catalog}}}\npredictor: {{model: {tmp_path}/model}}\n"
    )
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml")])
    assert "takes a job with trainers" in str(done.exception)


def test_a_larger_data_set_is_one_to_extract(catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(job_text("tiny", output=f"file://{tmp_path}/run", catalog=f"file://{catalog}"))
    with refused("--hours", "conflict"):
        CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), "--hours", "27"], catch_exceptions=False)


@pytest.mark.parametrize("option", ["--rate", "--seconds", "--hours", "--within", "--gpu-price"])
def test_number_that_is_not_finite_is_refused(tmp_path: Path, option: str) -> None:
    with refused(option, "range"):
        CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), option, "inf"], catch_exceptions=False)

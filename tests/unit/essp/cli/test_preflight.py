"""`essp validate`, `essp run` and `POST /v1/jobs` refuse the same jobs in the same words, and write nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from essp_common.artifacts import layout
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.command_line import essp
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.serving import served

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no catalog": ({"data": {}}, "data.catalog: is required"),
    "a catalog that is not there": ({"data": {"catalog": "file:///nowhere/c.parquet"}}, "essp catalog build"),
    "a budget too small": ({"limits": {"budget": "3KB"}}, "limits.budget: "),
    "an unknown feature": ({"streams": {"rgb": {}, "diff": {"feature": "no_such"}}}, "no extractor 'no_such'"),
    "weights that are not there": (
        {
            "streams": {"rgb": {}},
            "trainers": {"rgb": {"stream": "rgb", "batch_size": 2, "weights": "file:///nowhere/w.pt"}},
        },
        "trainers.rgb.weights: ",
    ),
}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ESSP_STORES", f'["file://{tmp_path}"]')  # the same as the master's
    with (
        closing(adapters_in(tmp_path)) as adapters,
        served(create_app(master_over(adapters), MasterSettings(api_open=True))) as url,
    ):
        yield url


def refusals(url: str, folder: Path, spec: JobSpec) -> list[str]:
    """What validate, run and the API say of a job."""
    file = folder / "job.json"
    file.write_text(spec.model_dump_json())
    said = []
    for command in (("validate", str(file)), ("run", str(file), "--json")):
        with pytest.raises(ConfigError) as raised:
            essp(*command)
        said.append(str(raised.value))
    answer = httpx.post(f"{url}/v1/jobs", content=file.read_bytes(), headers={"content-type": "application/json"})
    assert answer.status_code == 422
    return [*said, answer.json()["detail"]]


@pytest.mark.parametrize("name", WRONG)
def test_a_job_that_cannot_run_is_refused_in_the_same_words(url: str, tmp_path: Path, name: str) -> None:
    change, message = WRONG[name]
    validate, run, post = refusals(url, tmp_path, make_job(tmp_path, **change))
    assert validate == run == post
    assert message in validate
    assert not (tmp_path / "out").exists()


def test_an_output_of_another_job_is_refused_in_the_same_words(url: str, tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "out"))
    store.put(layout.SPEC, make_job(tmp_path, epochs=5).model_dump_json().encode())
    before = sorted(tmp_path.glob("out/**/*"))
    spec = make_job(tmp_path)
    validate, run, post = refusals(url, tmp_path, spec)
    assert validate == run == post
    assert "holds another job, which differs in epochs" in validate
    assert sorted(tmp_path.glob("out/**/*")) == before
    done = essp("validate", str(tmp_path / "job.json"), "--fresh", "--json")
    assert json.loads(done.stdout)["resumes_at"] == {"rgb": "begins", "diff": "begins"}

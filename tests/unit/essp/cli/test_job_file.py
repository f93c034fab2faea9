"""A job file: its paths, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp.cli.job_file import load_job, options_named
from essp.uris import as_uri, shown
from essp_common.errors import ConfigError
from essp_common.job.spec import parse_spec, stored_spec
from essp_common.runtime.config import Settings
from tests.harness.refused import refused

JOB = """
name: small
output: runs/small
data: {catalog: sets/catalog.parquet}
trainers: {rgb: {stream: rgb, weights: ../weights.safetensors}}
"""


def test_paths_are_meant_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    spec = load_job(Path("jobs/job.yaml"))
    assert spec.data.catalog == f"file://{tmp_path}/jobs/sets/catalog.parquet"
    assert spec.output == f"file://{tmp_path}/jobs/runs/small"
    assert spec.trainers["rgb"].weights == f"file://{tmp_path}/weights.safetensors"


def test_uris_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "{name: p, output: 's3://b/o', data: {catalog: 's3://b/c.parquet'}, predictor: {model: 's3://b/m'}}"
    )
    spec = load_job(file)
    assert (spec.output, spec.data.catalog) == ("s3://b/o", "s3://b/c.parquet")
    assert spec.predictor is not None
    assert spec.predictor.model == "s3://b/m"


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ("stream: rgb", "stream: rgb, batchsize: 4", "trainers.rgb.batchsize: there is no such field; did you mean ba"),
        ("output:", "outputs: x\noutput:", "outputs: there is no such field; did you mean output?"),
        ("stream: rgb", "stream: rgb, batch_size: many", "batch_size: must be a whole number, got 'many'"),
        ("stream: rgb", "stream: rgb, batch_size: 0", "batch_size: must be 1 or more, got 0"),
        ("stream: rgb", "stream: rgb, optimizer: {steps: 3}", "steps: must be a list, as in [a, b], got 3"),
        ("stream: rgb", "stream: rgb, device: tpu", "device: must be 'auto', 'cpu' or 'cuda', got 'tpu'"),
        ("stream: rgb", "stream: rgb, augment: {flip: 2}", "augment.flip: must be true or false, got 2"),
        ("output: runs/small", "epochs:", "output: is required\n  epochs: must be a whole number, got nothing"),
        ("name: small", "name: My Job", "'My Job' is not a name: 1 to 63 lower-case letters"),
        ("{rgb: {stream", "{Rgb: {stream", "trainers.Rgb: 'Rgb' is not a name"),
        ("stream: rgb", "stream: rbg", "trainers.rgb.stream: no stream 'rbg'; there are: rgb"),
    ],
)
def test_what_is_wrong_is_said_in_words(written: str, instead: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_spec(JOB.replace(written, instead), "job.yaml")
    message = str(raised.value)
    assert said in message
    assert not any(word in message for word in ("Input", "parse", "valid_", "pydantic"))


def test_a_token_in_the_environment_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_METRICS_PORT", "secret")
    with pytest.raises(ConfigError, match=r"ESSP_METRICS_PORT: must be a whole number$"):
        Settings()


def test_a_job_of_an_earlier_version_can_still_be_read() -> None:
    text = parse_spec(JOB).model_dump_json().replace('"strict":', '"gone": 1, "strict":')
    assert stored_spec(text, "spec.json").limits.strict
    with pytest.raises(ConfigError, match="another version of ESSP: name: is required"):
        stored_spec('{"output": "x", "trainers": {"rgb": {"stream": "rgb"}}}', "spec.json")


def test_a_stored_job_that_was_cut_is_damaged() -> None:
    text = parse_spec(JOB).model_dump_json()
    with pytest.raises(ConfigError, match=r"spec.json is damaged: .*; restore it from a backup"):
        stored_spec(text[: len(text) // 2], "spec.json")


def test_a_path_is_meant_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert as_uri("a b.mp4") == f"file://{tmp_path}/here/a b.mp4"
    assert as_uri("../videos/") == f"file://{tmp_path}/videos", "no key of a store holds .."
    assert as_uri("s3://bucket/a/../b") == "s3://bucket/a/../b"
    assert as_uri("~nobody.has.this/a.mp4") == f"file://{tmp_path}/here/~nobody.has.this/a.mp4"
    assert shown(as_uri("runs/one")) == "runs/one"
    assert shown(as_uri("../runs")) == f"{tmp_path}/runs"


@pytest.mark.parametrize(
    ("given", "name"),
    [({"epochs": 3}, "--epochs"), ({}, "epochs"), ({"splits": "1,2"}, "epochs")],
)
def test_a_field_that_an_option_has_set_has_the_name_of_the_option(given: dict[str, Any], name: str) -> None:
    with refused(name, "range"), options_named(**given):
        raise ConfigError("the output holds this job with fewer", field="epochs", code="range")

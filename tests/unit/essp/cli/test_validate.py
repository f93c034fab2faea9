"""`essp validate`: what it foresees of a job, of its servers and of the cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from essp.cli.init import job_text
from essp.cli.job_file import load_job
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores
from essp_engine.learning.models import starting_weights
from tests.harness.command_line import essp
from tests.harness.finished_job import finished_job
from tests.harness.refused import refused

ROWS = tuple(
    VideoRow(f"{split}{n}", f"s3://v/{split}{n}.mp4", f"c{n % 2}", split, 1, "e", width=64, height=64,
             frame_count=50, last_frame=49)
    for split in ("train", "validation") for n in range(4)
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(ROWS))
    path = tmp_path / "job.yaml"
    path.write_text(job_text(Catalog(ROWS), "set.parquet", "job.yaml", "small"))
    return path


def validate(file: Path, *options: str) -> Result:
    return essp("validate", str(file), *options)


def rewrite(file: Path, before: str, after: str) -> None:
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))


def test_what_init_writes_is_sound(file: Path) -> None:
    done = validate(file, "--json")
    found = json.loads(done.stdout)
    assert (found["classes"], found["videos"], found["warnings"]) == (2, {"train": 4, "validation": 4}, [])
    assert done.stderr == ""


def test_videos_that_are_not_there_are_told_before_the_run_refuses_them(tmp_path: Path) -> None:
    """Another machine may have them, so only a run on this one is refused. One that is there is enough."""
    rows = tuple(replace(row, uri=(tmp_path / f"{row.id}.mp4").as_uri()) for row in ROWS)
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    job = tmp_path / "job.yaml"
    job.write_text(job_text(Catalog(rows), "set.parquet", "job.yaml", "small"))
    [warning] = json.loads(validate(job, "--json").stdout)["warnings"]
    assert "relocate" in warning
    with refused("data.catalog", "not_found"):
        essp("run", str(job))
    (tmp_path / "validation3.mp4").touch()
    assert json.loads(validate(job, "--json").stdout)["warnings"] == []


def test_what_decoding_costs_is_said(file: Path) -> None:
    """Files of 50 frames without keyframes, clips of 11: each is decoded from the start of its file."""
    decoding = json.loads(validate(file, "--json").stdout)["decoding"]
    assert decoding["frames_per_clip"] <= decoding["frames_per_clip_alone"]
    assert 11 <= decoding["frames_per_clip_alone"] <= 50
    assert "frames a clip, " in " ".join(validate(file).stdout.split())
    rewrite(file, "kind: class_balanced", "kind: pooled\n  clips_per_visit: 2\n  window: 64")
    shared = json.loads(validate(file, "--json").stdout)["decoding"]
    assert shared["clips_per_pass"] > 1
    assert shared["times_less"] > 1
    rewrite(file, "kind: pooled", "kind: exhaustive\n  step: 2")
    rewrite(file, "clips_per_epoch: ", "# ")
    facts = json.loads(validate(file, "--json").stdout)
    assert facts["clips"]["train"] > facts["videos"]["train"], "each place of each video"
    assert facts["decoding"]["times_less"] > 1


def test_trainers_of_a_sweep_are_counted(file: Path) -> None:
    rewrite(file, "    stream: rgb\n", "    stream: rgb\n    sweep: {optimizer.lr: [0.1, 0.03]}\n")
    assert json.loads(validate(file, "--json").stdout)["sweeps"] == {
        "rgb": ["rgb-1", "rgb-2"],
        "flow": ["flow-1", "flow-2"],
    }
    assert "2 trainers at once, which share each decoded clip" in " ".join(validate(file).stdout.split())


def test_a_test_split_that_the_catalog_lacks_is_said(file: Path) -> None:
    rewrite(file, "test: null", "test: test")
    assert "warning: the catalog has no split 'test', so the model is not measured" in validate(file).stderr


def test_weights_of_a_package_reach_the_trainer_as_they_are_named(file: Path) -> None:
    rewrite(file, "model: small", "model: efficientnet_lite0\n    weights: package:efficientnet_lite0")
    assert validate(file).stderr == ""
    assert load_job(file).trainers["flow"].weights == "package:efficientnet_lite0"
    weights = starting_weights(Stores(()), load_job(file).trainers["rgb"].weights)
    assert weights is not None
    assert "_conv_stem.weight" in weights.tensors


@pytest.mark.parametrize(
    ("model", "weights", "words"),
    [
        ("small", "package:efficientnet_lite0", r"weights: package:efficientnet_lite0 are weights of model efficient"),
        ("efficientnet_lite0", "package:resnet18", r"there is no package:resnet18; there is package:efficientnet_l"),
        (
            "efficientnet_lite0",
            "imagenet",
            r"`weights: package:efficientnet_lite0` names those of its package",
        ),
    ],
)
def test_weights_that_are_not_there_name_those_that_are(file: Path, model: str, weights: str, words: str) -> None:
    rewrite(file, "model: small", f"model: {model}\n    weights: {weights}")
    with pytest.raises(ConfigError, match=words):
        validate(file)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("trainer:rgb", "is a trainer of this job, and those learn side by side"),
        ("runs/set/trainers/rgb", "is in the output of this job"),
        ("resnet18.pt", "essp weights fetch resnet18"),
        ("runs/other", "it is the output of a job; name one of its trainers: .*runs/other/trainers/rgb, "),
        ("runs/nowhere/trainers/rgb", "no job has .*/runs/nowhere as its output; first run the job that trains rgb"),
        ("runs/other/trainers/grey", "has no trainer 'grey'; it has: rgb, flow"),
        (
            "runs/other/trainers/rgb",
            r"trainers\.flow\.weights: .* contains weights of small, not resnet18; set model: small",
        ),
    ],
)
def test_weights_of_a_job_are_checked_before_it_begins(file: Path, weights: str, words: str) -> None:
    finished_job(file.parent / "runs" / "other")
    rewrite(file, "    stream: flow", f"    stream: flow\n    model: resnet18\n    weights: {weights}")
    rewrite(file, load_output(file), "runs/set")
    with pytest.raises(ConfigError, match=words):
        validate(file)


def test_weights_of_another_job_that_has_ended_pass(file: Path) -> None:
    finished_job(file.parent / "runs" / "other")
    rewrite(file, "    stream: flow", "    stream: flow\n    weights: runs/other/trainers/rgb")
    assert validate(file).stderr == ""


def load_output(file: Path) -> str:
    """The output of a job, as its file has it."""
    return next(line.split()[1] for line in file.read_text().splitlines() if line.startswith("output: "))


def catalog_of(file: Path, rows: Sequence[VideoRow]) -> None:
    write_catalog(DirectoryStore(str(file.parent)), "set.parquet", Catalog(tuple(rows)))


def test_groups_are_counted_and_those_in_several_splits_are_told(file: Path) -> None:
    catalog_of(file, [replace(row, group=f"g{n % 3}") for n, row in enumerate(ROWS)])
    done = validate(file, "--json")
    assert json.loads(done.stdout)["groups"] == {"train": 3, "validation": 3}
    assert "3 groups have videos in several splits, such as g0 in train and validation" in done.stderr
    catalog_of(file, [replace(row, split="train", group=f"g{n % 4}") for n, row in enumerate(ROWS)])
    assert "several splits" not in validate(file).stderr, "validation videos are set aside by group"


def test_videos_without_labels_cannot_be_trained_on(file: Path) -> None:
    catalog_of(file, [replace(row, class_name="") for row in ROWS])
    with pytest.raises(ConfigError, match=r"no labels; put videos in class folders"):
        validate(file)
    with pytest.raises(ConfigError, match=r"no labels, .* put videos in class folders"):
        job_text(Catalog(tuple(replace(row, class_name="") for row in ROWS)), "set.parquet", "job.yaml", "small")


def test_a_missing_catalog_is_a_wrong_job(file: Path) -> None:
    rewrite(file, "catalog: set.parquet", "catalog: elsewhere.parquet")
    with pytest.raises(ConfigError, match=r"data\.catalog: there is no file .*elsewhere\.parquet; make one with"):
        validate(file)


def test_a_budget_too_small_to_leave_a_trainer_behind_is_told(file: Path) -> None:
    rewrite(file, "budget: 512MiB", "budget: 16MiB")
    assert validate(file).stderr == "", "they are to keep in step anyway"
    rewrite(file, "coupled: true", "coupled: false")
    assert "limits.budget is too small to let trainers run apart" in validate(file).stderr
    least = validate(file).stderr.partition("raise it to ")[2].partition(" or more")[0]
    rewrite(file, "budget: 16MiB", f"budget: {least}")
    assert validate(file).stderr == ""


def test_a_cache_that_holds_less_than_the_budget_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_CACHE", "memory://?bytes=64MiB")
    assert "ESSP_CACHE holds 64.0 MiB, limits.budget is 512 MiB" in validate(file).stderr


def test_servers_that_are_not_there_are_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_BUS", "kafka://127.0.0.1:1")
    monkeypatch.setenv("ESSP_CACHE", "redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable) as raised:
        validate(file)
    lines = str(raised.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["kafka", "redis"]
    assert all("no server listens at 127.0.0.1:1" in line and "start the server" in line for line in lines)


def test_a_gpu_that_is_not_here_is_refused_where_the_job_would_train_here(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rewrite(file, "    dropout: 0.5", "    device: cuda")
    for command in ("validate", "run"):
        with refused("trainers.rgb.device", "unsupported"):
            essp(command, str(file))
    assert not (file.parent / "runs").exists()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda rank: None)
    assert validate(file).exit_code == 0


@pytest.mark.parametrize(
    ("before", "after", "meant"),
    [
        ("feature: flow", "feature: flwo", "did you mean flow?"),
        ("model: small", "model: smal", "did you mean small?"),
        ("stream: flow", "stream: folw", "did you mean flow?"),
        ("length:", "lenght:", "did you mean length?"),
        ("test: null", "test: validatoin", "did you mean validation?"),
        ("epochs:", "epoch:", "did you mean epochs?"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(
    file: Path, before: str, after: str, meant: str
) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after, 1))
    with pytest.raises(ConfigError) as raised:
        validate(file)
    assert meant in str(raised.value)

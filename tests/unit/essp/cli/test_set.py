"""`--set FIELD=VALUE` and `--name`: a job file with other values, unedited; and the job that an output holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.cli.job_file import load_job, options_again
from essp.job_file import read_job
from essp_common.artifacts import layout
from essp_common.artifacts.job_copy import is_copy, write_copy
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.wiring import Stores
from tests.harness.refused import refused

JOB = """
name: ut
output: runs/ut
data: {catalog: ut.parquet}
streams:
  rgb: {feature: rgb, params: {frames: 1}}
  flow: {feature: flow, params: {length: 10}}
trainers:
  rgb: &base
    stream: rgb
    augment: &augment {crop: 112, flip: true}
    optimizer: {lr: 0.01, steps: [10, 20]}
  flow: {<<: *base, stream: flow}
  wide: {stream: rgb, sweep: {optimizer.lr: [0.1, 0.2]}}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return "jobs/job.yaml"


def test_each_field_takes_its_value_in_yaml(file: str) -> None:
    given = [
        "trainers.rgb.optimizer.lr=2e-2",
        "trainers.rgb.optimizer.steps=[5, 6]",
        "trainers.rgb.stop.patience=3",
        "trainers.flow.augment={crop: 96}",
        "limits.coupled=yes",
        "aggregation.strategies=[average, {name: top_k, k: [1, 3]}]",
        "streams.flow.params.length=5",
    ]
    spec = load_job(file, sets=given)
    assert spec.trainers["rgb"].optimizer.lr == 0.02
    assert list(spec.trainers["rgb"].optimizer.steps) == [5, 6]
    assert spec.trainers["rgb"].stop is not None
    assert spec.trainers["flow"].augment.crop == 96
    assert spec.limits.coupled
    assert len(spec.aggregation.strategies) == 2
    assert spec.streams["flow"].params["length"] == 5
    assert load_job(file).trainers["rgb"].optimizer.lr == 0.01


def test_what_an_alias_shares_is_set_for_the_named_trainer_alone(file: str) -> None:
    spec = load_job(file, sets=["trainers.rgb.augment.crop=96", "trainers.rgb.optimizer.lr=0.5"])
    assert (spec.trainers["rgb"].augment.crop, spec.trainers["flow"].augment.crop) == (96, 112)
    assert (spec.trainers["rgb"].optimizer.lr, spec.trainers["flow"].optimizer.lr) == (0.5, 0.01)


def test_a_sweep_is_set_before_it_is_expanded(file: str) -> None:
    spec = load_job(file, sets=["trainers.wide.sweep={optimizer.lr: [1, 2, 3]}", "trainers.wide.batch_size=4"])
    assert {name: one.batch_size for name, one in spec.trainers.items() if "wide" in name} == dict.fromkeys(
        ("wide-1", "wide-2", "wide-3"), 4
    )


def test_trainers_are_left_out_by_null_and_added_with_their_stream(file: str) -> None:
    given = ["trainers.flow=null", "trainers.wide=null", "trainers.new.stream=rgb", "trainers.new.model=resnet18"]
    assert {name: one.model for name, one in load_job(file, sets=given).trainers.items()} == {
        "rgb": "small",
        "new": "resnet18",
    }


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ("trainers.rbg.optimizer.lr=1", "trainers.rbg.optimizer.lr", "unknown"),
        ("trainers.*.optimizer.lr=1", "trainers.*.optimizer.lr", "unknown"),
        ("trainers.wide-1.optimizer.lr=1", "trainers.wide-1.optimizer.lr", "unknown"),
        ("streams.flwo.params.length=1", "streams.flwo.params.length", "unknown"),
        ("trainers.flwo=null", "trainers.flwo", "unknown"),
        ("trainers.rgb.optimizer.rate=1", "trainers.rgb.optimizer.rate", "unknown"),
        ("trainer.rgb.batch_size=1", "trainer", "unknown"),
        ("lr=1", "lr", "unknown"),
        ("trainers.rgb.optimizer.lr=fast", "trainers.rgb.optimizer.lr", "type"),
        ("trainers.rgb.optimizer.lr=", "trainers.rgb.optimizer.lr", "type"),
        ("trainers.rgb.optimizer.lr.x=1", "trainers.rgb.optimizer.lr.x", "conflict"),
        ("trainers.rgb.optimizer.steps.0=1", "trainers.rgb.optimizer.steps.0", "conflict"),
        ("trainers.rgb.optimizer=0.1", "trainers.rgb.optimizer", "type"),
        ("trainers.rgb.batch_size=0", "trainers.rgb.batch_size", "range"),
        ("epochs=[1", "", "unreadable"),
        ("epochs", "", "invalid"),
        ("=3", "", "invalid"),
    ],
)
def test_what_cannot_be_set_is_refused_by_the_name_that_was_given(file: str, given: str, field: str, code: str) -> None:
    with refused(field, code):
        load_job(file, sets=[given])


def test_the_nearest_name_is_suggested_with_its_path(file: str) -> None:
    for given, near in (
        ("trainers.rbg.optimizer.lr=1", "trainers.rgb.optimizer.lr?"),
        ("trainers.rgb.lr=1", "trainers.rgb.optimizer.lr?"),
        ("batch_size=1", "trainers.NAME.batch_size?"),
        ("trainers.wide-1.batch_size=1", "trainers.wide.batch_size "),
    ):
        with pytest.raises(Exception, match=near.replace("?", r"\?")):
            load_job(file, sets=[given])


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (["epochs=3", "epochs=4"], "epochs"),
        (["trainers.rgb.batch_size=4", "trainers.rgb={stream: rgb}"], "trainers.rgb"),
    ],
)
def test_a_field_is_set_once(file: str, given: list[str], field: str) -> None:
    with refused(field, "conflict"):
        load_job(file, sets=given)


def test_the_options_do_not_contradict_each_other(file: str) -> None:
    with refused("--epochs", "conflict"):
        load_job(file, 3, ["epochs=4"])
    with refused("--name", "conflict"):
        load_job(file, sets=["name=a"], name="b")
    with refused("--name", "invalid"):
        load_job(file, name="No Name")


def test_a_part_of_a_section_can_be_set_after_the_section(file: str) -> None:
    spec = load_job(file, sets=["trainers.rgb={stream: rgb, batch_size: 2}", "trainers.rgb.optimizer.lr=1"])
    assert (spec.trainers["rgb"].batch_size, spec.trainers["rgb"].optimizer.lr) == (2, 1)


def test_paths_on_the_command_line_are_meant_from_the_working_folder(file: str, tmp_path: Path) -> None:
    given = ["data.catalog=other.parquet", "output=runs/there", "trainers.rgb.weights=rgb.pt"]
    spec = load_job(file, sets=[*given, "trainers.flow={stream: flow, weights: flow.pt}"])
    assert spec.data.catalog == f"file://{tmp_path}/other.parquet"
    assert spec.output == f"file://{tmp_path}/runs/there"
    assert spec.trainers["rgb"].weights == f"file://{tmp_path}/rgb.pt"
    assert spec.trainers["flow"].weights == f"file://{tmp_path}/flow.pt"
    spec = load_job(
        file,
        sets=[
            "trainers.rgb.weights=package:efficientnet_lite0",
            "trainers.rgb.model=efficientnet_lite0",
            "data.catalog=s3://b/c.parquet",
        ],
    )
    assert (spec.trainers["rgb"].weights, spec.data.catalog) == ("package:efficientnet_lite0", "s3://b/c.parquet")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("runs/ut", "{folder}/jobs/runs/lr02"),
        ("runs/ut/", "{folder}/jobs/runs/lr02"),
        ("ut", "{folder}/jobs/lr02"),
        ("/data/ut", "file:///data/lr02"),
        ("s3://bucket/runs/ut", "s3://bucket/runs/lr02"),
        ("s3://bucket/ut", "s3://bucket/lr02"),
    ],
)
def test_a_name_gives_an_output_next_to_that_of_the_file(file: str, tmp_path: Path, output: str, found: str) -> None:
    Path(file).write_text(JOB.replace("runs/ut", output))
    spec = load_job(file, name="lr02")
    assert (spec.name, spec.output) == ("lr02", found.format(folder=f"file://{tmp_path}"))
    assert load_job(file, sets=["output=x"], name="lr02").output == f"file://{tmp_path}/x"


@pytest.mark.parametrize("output", ["s3://bucket", ".", ".."])
def test_an_output_with_nothing_beside_it_needs_another_one(file: str, output: str) -> None:
    Path(file).write_text(JOB.replace("runs/ut", output))
    with refused("--name", "conflict"):
        load_job(file, name="lr02")


def _ran(spec: JobSpec) -> None:
    """Leave what a start of this job writes."""
    output = Stores(("file:///",)).under(spec.output)
    output.put(layout.SPEC, spec.model_dump_json().encode())
    write_copy(output, spec)


def test_the_output_of_a_job_repeats_it(file: str, tmp_path: Path) -> None:
    spec = load_job(file, sets=["trainers.rgb.optimizer.lr=0.5"], name="lr5")
    _ran(spec)
    folder = tmp_path / "jobs" / "runs" / "lr5"
    for again in (folder, f"{folder}/", f"file://{folder}", folder / "job.yaml", folder / "spec.json"):
        assert load_job(str(again)) == spec
    other = load_job(str(folder), sets=["epochs=3"], name="other")
    assert (other.epochs, other.name, other.output) == (3, "other", f"file://{folder.parent}/other")


def test_a_folder_without_a_job_and_a_moved_output_are_refused(file: str, tmp_path: Path) -> None:
    with refused("", "not_found"):
        load_job(str(tmp_path))
    _ran(load_job(file))
    (tmp_path / "jobs" / "runs" / "ut").rename(tmp_path / "moved")
    with refused("output", "conflict"):
        load_job("moved")
    assert load_job("moved", name="anew").output == f"file://{tmp_path}/jobs/runs/anew"


def test_a_job_file_of_the_user_in_the_output_stays(tmp_path: Path) -> None:
    spec = parse_spec(JOB.replace("runs/ut", str(tmp_path)))
    output = Stores(("file:///",)).under(f"file://{tmp_path}")
    (tmp_path / "job.yaml").write_text("# mine\n" + JOB)
    write_copy(output, spec)
    assert (tmp_path / "job.yaml").read_text() == "# mine\n" + JOB
    (tmp_path / "job.yaml").unlink()
    write_copy(output, spec)
    assert is_copy(output)
    (tmp_path / "job.yaml").write_text((tmp_path / "job.yaml").read_text() + "# my note\n")
    write_copy(output, spec.model_copy(update={"epochs": 3}))
    assert "# my note" in (tmp_path / "job.yaml").read_text()


def test_the_command_that_continues_has_the_same_options(file: str) -> None:
    given = ["aggregation.strategies=[average, best]", "trainers.rgb.optimizer.lr=0.5"]
    assert options_again(3, given, "x") == (
        " --set 'aggregation.strategies=[average, best]' --set trainers.rgb.optimizer.lr=0.5 --name x --epochs 3"
    )
    assert read_job(file, given) == load_job(file, sets=given)

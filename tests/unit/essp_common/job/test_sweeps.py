"""A sweep becomes trainers, once, and those are what is stored."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.job.changes import after_all
from essp_common.job.data_spec import DataSpec
from essp_common.job.spec import JobSpec, parse_spec, stored_spec
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.pb.v1.messages_pb2 import Change
from tests.harness.refused import Refusal, refused

JOB = """
name: sweep
output: file:///out
sampling: {{seed: 7}}
trainers:
  {trainers}
"""


def parsed(*trainers: str) -> JobSpec:
    return parse_spec(JOB.format(trainers="\n  ".join(trainers)))


def test_each_combination_is_a_trainer_with_a_seed_of_its_own() -> None:
    job = parsed("rgb: {stream: rgb, batch_size: 8, sweep: {optimizer.lr: [0.1, 0.03], dropout: [0, 0.5, 0.8]}}")
    found = {name: (one.optimizer.lr, one.dropout, one.seed) for name, one in job.trainers.items()}
    assert found == {
        "rgb-1": (0.1, 0.0, 7),
        "rgb-2": (0.1, 0.5, 8),
        "rgb-3": (0.1, 0.8, 9),
        "rgb-4": (0.03, 0.0, 10),
        "rgb-5": (0.03, 0.5, 11),
        "rgb-6": (0.03, 0.8, 12),
    }
    assert {one.batch_size for one in job.trainers.values()} == {8}
    assert job.sweeps == {"rgb": tuple(job.trainers)}


def test_the_expanded_job_is_what_is_stored() -> None:
    job = parsed(
        "rgb: {stream: rgb, optimizer: {momentum: 0.5, lr: 1}, sweep: {optimizer.lr: [0.1, 0.03]}}",
        "other: {stream: rgb}",
    )
    assert stored_spec(job.model_dump_json(), "here") == job
    assert JobSpec.model_validate(job.model_dump()) == job
    assert list(job.trainers) == ["rgb-1", "rgb-2", "other"]
    assert [job.trainers[name].optimizer.momentum for name in ("rgb-1", "rgb-2")] == [0.5, 0.5]
    assert job.trainers["rgb-2"].sweep == {"optimizer.lr": (0.03,)}
    assert job.sweeps == {"rgb": ("rgb-1", "rgb-2")}


def test_trainers_that_only_end_with_numbers_are_no_sweep() -> None:
    """Of each, all that `keep` says are fused."""
    job = parsed(
        "resnet-18: {stream: rgb, model: resnet18, keep: 1, sweep: {optimizer.lr: [0.1]}}",
        "resnet-50: {stream: rgb, model: resnet50, keep: 1, sweep: {optimizer.lr: [0.1]}}",
        "take-1: {stream: rgb, sweep: {dropout: [0.1, 0.2]}}",
        "take-2: {stream: rgb, sweep: {optimizer.lr: [0.1, 0.2]}}",
        "take-3: {stream: rgb, dropout: 0.2}",
        "one: {stream: rgb, sweep: {dropout: [0.1]}}",
        "two-2018: {stream: rgb, sweep: {dropout: [0.1]}}",
    )
    expected = {
        "resnet-18": ("resnet-18",),
        "resnet-50": ("resnet-50",),
        "take-1": ("take-1-1", "take-1-2"),
        "take-2": ("take-2-1", "take-2-2"),
        "one": ("one",),
        "two-2018": ("two-2018",),
    }
    assert job.sweeps == stored_spec(job.model_dump_json(), "here").sweeps == expected


def test_a_sweep_stays_one_whatever_was_swept_and_changed() -> None:
    job = parsed(
        "net: {stream: rgb, sweep: {model: [resnet18, alexnet], probe: [null, {clips: 9}], seed: [1, 2]}}",
        "own: {stream: rgb, probe: {}, sweep: {probe.penalty: [0.1, 1]}}",
        "lr: {stream: rgb, sweep: {dropout: [0.1, 0.2]}}",
        "both: {stream: rgb, sweep: {probe.penalty: [0.1, 1], probe: [null, {}]}}",
    )
    assert {name: len(members) for name, members in job.sweeps.items()} == {"net": 8, "own": 2, "lr": 2, "both": 4}
    changed = after_all(job, [Change(number=1, fields={"trainers.lr-2.optimizer.lr": "0.5"})])
    assert changed.trainers["lr-2"].optimizer.lr == 0.5
    assert changed.sweeps == job.sweeps


@pytest.mark.parametrize("given", ["", "probe: {}, ", "probe: {clips: 9}, ", "probe: null, "])
def test_fields_of_a_section_that_may_be_left_out_are_swept(given: str) -> None:
    job = parsed("rgb: {stream: rgb, " + given + "sweep: {probe.penalty: [0.1, 1]}}")
    probes = [one.probe for one in job.trainers.values() if one.probe is not None]
    assert [probe.penalty for probe in probes] == [0.1, 1]
    assert {probe.clips for probe in probes} == {9 if "9" in given else 10_000}
    magnitudes = parsed("rgb: {stream: rgb, sweep: {augment.rand_augment.magnitude: [5, 9]}}").trainers.values()
    assert [one.augment.rand_augment and one.augment.rand_augment.magnitude for one in magnitudes] == [5, 9]
    wholly = parsed("rgb: {stream: rgb, sweep: {probe: [null, {penalty: 3}]}}").trainers.values()
    assert [one.probe and one.probe.penalty for one in wholly] == [None, 3]


def test_all_members_read_each_clip() -> None:
    job = parsed("rgb: {stream: rgb, sweep: {optimizer.lr: [0.1, 0.03]}}")
    assert len(job.readers()) == 2
    assert set(job.readers().values()) == {"rgb"}


def test_a_seed_that_is_given_is_that_of_all_members() -> None:
    assert [one.seed for one in parsed("a: {stream: rgb, seed: 3, sweep: {dropout: [0, 0.5]}}").trainers.values()] == [
        3,
        3,
    ]
    assert [one.seed for one in parsed("a: {stream: rgb, sweep: {seed: [5, 1]}}").trainers.values()] == [5, 1]


def test_a_trainer_made_in_python_is_swept_as_well() -> None:
    trainer = TrainerSpec(stream="rgb", sweep={"augment.scales": ([1.0], [1.0, 0.75])})
    job = JobSpec(name="sweep", output="file:///out", trainers={"rgb": trainer})
    assert [one.augment.scales for one in job.trainers.values()] == [(1.0,), (1.0, 0.75)]


@pytest.mark.parametrize(
    ("trainers", "words"),
    [
        (["rgb: {stream: rgb, sweep: {optimizer.lrr: [1]}}"], ("trainers.rgb.sweep.optimizer.lrr", "conflict")),
        (["rgb: {stream: rgb, sweep: {optimizer: [1]}}"], ("trainers.rgb.sweep.optimizer", "conflict")),
        (["rgb: {stream: rgb, sweep: {dropout.x: [1]}}"], ("trainers.rgb.sweep.dropout.x", "conflict")),
        (["rgb: {stream: rgb, sweep: {probe.x: [1]}}"], ("trainers.rgb.sweep.probe.x", "conflict")),
        (["rgb: {stream: rgb, probe: 3, sweep: {probe.penalty: [1]}}"], ("trainers.rgb.probe", "type")),
        (["rgb: {stream: rgb, sweep: {weights: [a.pt]}}"], ("trainers.rgb.sweep.weights", "conflict")),
        (["rgb: {stream: rgb, sweep: {dropout: 0.5}}"], ("trainers.rgb.sweep.dropout", "conflict")),
        (["rgb: {stream: rgb, sweep: {dropout: []}}"], ("trainers.rgb.sweep.dropout", "conflict")),
        (["rgb: {stream: rgb, sweep: {dropout: [0.5, 0, 0.5]}}"], ("trainers.rgb.sweep.dropout", "conflict")),
        (
            ["rgb: {stream: rgb, sweep: {dropout: [0, 7]}}"],
            ("trainers.rgb-2.dropout", "range"),
        ),
        (["rgb: {stream: rgb, optimizer: 3, sweep: {optimizer.lr: [1]}}"], ("trainers.rgb.optimizer", "type")),
        (["rgb: {stream: rgb, sweep: {keep: [1]}}"], ("trainers.rgb.sweep.keep", "conflict")),
        (["rgb: {stream: rgb, keep: 1}"], ("trainers.rgb.keep", "conflict")),
        (["rgb: {stream: rgb, sweep: 3}"], ("trainers.rgb.sweep", "type")),
        (
            ["rgb: {stream: rgb, sweep: {dropout: [0, 0.5]}}", "rgb-2: {stream: rgb}"],
            ("trainers.rgb.sweep", "conflict"),
        ),
    ],
)
def test_what_cannot_be_swept_is_refused(trainers: list[str], words: Refusal) -> None:
    with refused(*words):
        parsed(*trainers)


def test_what_is_kept_is_chosen_on_validation_videos() -> None:
    kept = TrainerSpec(stream="rgb", sweep={"dropout": (0.1, 0.2)}, keep=1)
    job = JobSpec(name="sweep", output="file:///out", trainers={"rgb": kept})
    assert [(name, one.keep) for name, one in job.trainers.items()] == [("rgb-1", 1), ("rgb-2", 1)]
    with refused("trainers.rgb-1.keep", "conflict"):
        JobSpec(name="sweep", output="file:///out", data=DataSpec(validation=None), trainers={"rgb": kept})


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    many: dict[str, Any] = {"optimizer.lr": list(range(1, 1001)), "seed": list(range(1000)), "batch_size": [1, 2]}
    with refused("trainers.rgb.sweep", "conflict"):
        parsed(f"rgb: {{stream: rgb, sweep: {many}}}")
    with refused("trainers", "conflict"):
        parsed(*(f"{name}: {{stream: rgb, sweep: {{seed: {list(range(33))}}}}}" for name in "ab"))

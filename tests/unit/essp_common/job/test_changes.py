"""What of a job may change while it runs, in which values, and in what words anything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp_common.errors import ConfigError
from essp_common.job.changes import (
    Place,
    changeable,
    changed,
    differences,
    gains,
    next_run,
    of_next_run,
    parse_changes,
    place_at,
)
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import EMBED, TEST, TRAIN, VALIDATION, PhasePlan
from tests.harness.fleet import make_job
from tests.harness.refused import refused

LR, STRATEGIES = "trainers.rgb.optimizer.lr", "aggregation.strategies"


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return make_job(tmp_path)


def test_a_part_of_a_job_file_changes_those_fields_alone(job: JobSpec) -> None:
    text = "{trainers: {rgb: {optimizer: {lr: 1e-3, steps: [3, 4]}}}, aggregation: {strategies: [{name: top_k, k: 3}]}}"
    after = changed(job, parse_changes(text))
    assert differences(job, after) == {
        LR: ("0.01", "0.001"),
        "trainers.rgb.optimizer.steps": ("[]", "[3, 4]"),
        STRATEGIES: (
            '["average", "product", "best", "weighted", "weighted_product"]',
            '[{"name": "top_k", "k": 3}]',
        ),
    }
    assert after.trainers["diff"] == job.trainers["diff"]
    assert changed(after, parse_changes("trainers: {rgb: {optimizer: {lr: 0.01, steps: []}}}")).trainers == job.trainers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"trainers.rgb.lr": 1.0}, r"^trainers\.rgb\.lr: cannot be .*did you mean trainers\.rgb\.optimizer\.lr\?"),
        ({"trainers.rgb.batch_size": 4}, r"^trainers\.rgb\.batch_size: cannot be changed while the job runs"),
        ({LR: 0}, rf"^{LR}: must be more than 0"),
        ({LR: float("nan")}, rf"^{LR}: must be"),
        ({LR: None}, rf"^{LR}: must be a number"),
        ({STRATEGIES: []}, rf"^{STRATEGIES}: needs 1 or more"),
        ({STRATEGIES: ["average"] * 10_000}, "more than 16384 bytes"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field(job: JobSpec, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        changed(job, fields)


def test_more_epochs_and_trainers_are_of_the_next_run(job: JobSpec) -> None:
    text = (
        "{epochs: 3, trainers: {rgb: {optimizer: {lr: 0.5}}, more: {stream: s, augment: {crop: 8}}}, streams: {s: {}}}"
    )
    fields = parse_changes(text)
    later = of_next_run(job, fields)
    assert fields.keys() - later == {LR}
    after = next_run(job, {field: fields[field] for field in later})
    assert gains(job, after) == "3 epochs instead of 2 and the trainer more"
    assert (after.trainers["more"].augment.crop, after.trainers["rgb"]) == (8, job.trainers["rgb"])
    assert next_run(after, {field: fields[field] for field in later}) == after
    assert next_run(job, {}) == job


def test_names_with_dots_in_them_stay_whole(job: JobSpec) -> None:
    text = (
        "{trainers: {more: {stream: rgb, batch_size: 2, optimizer: {layers: {layer1.0: 0.1, '': 0.5}}}, "
        "other: {stream: rgb, batch_size: 2, sweep: {optimizer.lr: [0.1, 0.2]}}}}"
    )
    fields = parse_changes(text)
    assert 'trainers.more.optimizer.layers."layer1.0"' in fields
    after = next_run(job, {field: fields[field] for field in of_next_run(job, fields)})
    assert after.trainers["more"].optimizer.layers == {"layer1.0": 0.1, "": 0.5}
    assert [after.trainers[name].optimizer.lr for name in ("other-1", "other-2")] == [0.1, 0.2]
    with refused('trainers.more.optimizer.layers."layer1.0"', "type"):
        next_run(job, {**fields, 'trainers.more.optimizer.layers."layer1.0"': "fast"})


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", "lr=0.1"])
def test_a_change_is_a_mapping(text: str) -> None:
    with pytest.raises(ConfigError, match="the change: is a mapping"):
        parse_changes(text)


def test_a_job_without_trainers_has_nothing_to_change(tmp_path: Path) -> None:
    job = make_job(tmp_path, trainers={}, consumers={"loop": {"stream": "rgb"}})
    assert changeable(job) == []
    with refused("aggregation.strategies", "unsupported"):
        changed(job, {STRATEGIES: ["average"]})


def test_a_place_is_the_clip_that_is_trained_next_however_many_epochs_there_are() -> None:
    phases = [
        PhasePlan(purpose=purpose, epoch=epoch, clips=10 if purpose == TRAIN else 4)
        for epoch in range(2)
        for purpose in (TRAIN, VALIDATION)
    ]
    phases += [PhasePlan(purpose=EMBED, clips=4), PhasePlan(purpose=TEST, clips=4)]
    assert place_at(phases, (0, 0)) == Place(0, 0)
    assert place_at(phases, (0, 9)) == Place(0, 9)
    assert place_at(phases, (0, 10)) == place_at(phases, (1, 3)) == place_at(phases, (2, 0)) == Place(1, 0)
    assert {place_at(phases, place) for place in [(2, 10), (3, 1), (4, 2), (5, 0), (6, 0)]} == {Place(2, 0)}
    assert [str(place) for place in (Place(1, 0), Place(0, 9))] == ["epoch 2", "clip 9 of epoch 1"]

"""A job whose streams are pictures for networks and descriptors for encoders, from videos to predictions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import essp
from essp.checkpoints.programs import export_programs
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts.fused_model import open_model
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.runtime.failpoints import VARIABLE
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob, asked_clips
from tests.harness import launcher
from tests.harness.embedded_jobs import complete, finish
from tests.harness.journeys import weights_of

pytestmark = pytest.mark.lane("promises")

STORES = Stores(("file:///",))
STREAMS: dict[str, Any] = {
    "rgb": {"feature": "rgb"},
    "hof": {
        "feature": "hof",
        "params": {"side": 16, "stride": 8, "length": 3, "time_cells": 1, "method": "dis"},
    },
    "tracks": {
        "feature": "trajectories",
        "params": {
            **{"count": 60, "length": 4, "side": 8, "cells": 1, "time_cells": 1, "scales": 1, "method": "dis"},
        },
    },
}
ENCODER = {"pca": 6, "centres": 4, "samples": 2000, "clips": 100}
TRAINERS: dict[str, Any] = {
    "rgb": {"stream": "rgb", "batch_size": 4, "threads": 1, "augment": {"crop": 32, "flip": False}},
    "hof": {"stream": "hof", "model": "fisher_vector", "encoder": ENCODER, "batch_size": 4},
    "tracks": {"stream": "tracks", "model": "vlad", "encoder": ENCODER, "batch_size": 4},
}


def with_descriptors(spec: JobSpec, **fields: Any) -> JobSpec:
    clip = {"frames": 5, "resize": {"mode": "crop", "height": 80, "width": 80}}
    own = {"clip": clip, "streams": STREAMS, "trainers": TRAINERS}
    document = spec.model_dump(exclude_unset=True, mode="json") | own | fields
    return JobSpec.model_validate(document)


def test_descriptors_are_learned_from_fused_and_predicted(make_job: MakeJob, videos: Path) -> None:
    """Each clip is trained once by all, and whoever asks the model gets the answers that it was measured with."""
    spec = with_descriptors(make_job())
    with Embedded(spec, Settings()) as job:
        status = finish(job)
        assert job.adapters.cache.usage().keys == 0
    assert status.state is JobState.COMPLETED, status.reason
    for passed in status.phases:
        assert passed.done == {f"trainer.{name}": passed.clips for name in TRAINERS}
    _, found = open_model(STORES, spec.output)
    assert {member.trainer for member in found.members} == set(TRAINERS)
    assert found.test is not None
    assert found.test.members["hof"]["top1"] == 1, "motion to the left and to the right"
    assert found.test.fused["top1"] == 1
    for command in ("report", "audit"):
        done = CliRunner().invoke(app, [command, spec.output])
        assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["checkpoint", "show", spec.output, "--trainer", "hof"])
    assert "fisher_vector on hof, 2 classes, 6 components, 4 centres" in " ".join(shown.output.split())
    with pytest.raises(ConfigError, match=r"encodes descriptors, which has no network .* export with --format essp"):
        export_programs(essp.load_model(spec.output), STORES.under(f"{spec.output}/programs"), "onnx")

    model = essp.load_model(spec.output)
    video = videos / "test" / "left" / "0.mp4"
    [answer] = essp.predict(video, spec.output)
    clips = asked_clips(spec, video)
    scores = {
        name: np.mean([own.score(essp.compute_feature(clip, own.feature, **own.params)) for clip in clips], axis=0)
        for name, own in model.streams.items()
    }
    assert dict(zip(model.classes, model.fuse(scores)[0], strict=True)) == pytest.approx(answer.scores, abs=1e-5)


def test_strategies_learn_from_the_vectors_of_encoders_as_from_features(make_job: MakeJob, videos: Path) -> None:
    trainers = {name: TRAINERS[name] for name in ("rgb", "hof")}
    asked = {"strategies": ["feature_linear"], "features": True}
    spec = with_descriptors(make_job(epochs=1), trainers=trainers, aggregation=asked)
    with Embedded(spec, Settings()) as job:
        complete(job)
    [answer] = essp.predict(videos / "test" / "right" / "1.avi", spec.output)
    assert answer.class_name == "right"


@pytest.mark.lane("long")
@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_to_the_weights_of_one_that_was_not(make_job: MakeJob, tmp_path: Path) -> None:
    whole, parted = (
        with_descriptors(make_job(name), trainers={"hof": TRAINERS["hof"], "tracks": TRAINERS["tracks"]}, epochs=3)
        for name in ("whole", "parted")
    )
    with Embedded(whole, Settings()) as job:
        finish(job)
    path = tmp_path / "parted.json"
    path.write_text(parted.model_dump_json(exclude_unset=True), encoding="utf-8")
    arguments = [*launcher.python(), "-m", "essp", "run", str(path)]
    killed = subprocess.run(
        arguments, env=os.environ | {VARIABLE: "trainer.trained:14:kill"}, capture_output=True, text=True, check=False
    )
    assert "failpoint trainer.trained" in killed.stderr
    with Embedded(parted, Settings()) as job:
        complete(job)
    assert weights_of(STORES, parted.output) == weights_of(STORES, whole.output)


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (
            {"stream": "rgb", "model": "vlad"},
            r"trainers\.one\.model: vlad encodes descriptors, and rgb .* is a picture",
        ),
        ({"stream": "hof"}, r"trainers\.one\.stream: hof .* set model to an encoder \(fisher_vector, vlad, bag_of_wo"),
        (
            {"stream": "hof", "model": "vlad", "encoder": {"pca": 400}},
            r"trainers\.one\.encoder\.pca: 400 components are more than the 36 numbers .* set it to 36 or less",
        ),
        (
            {"stream": "tracks", "model": "vlad", "encoder": {"pca": 50}},
            r"trainers\.one\.encoder\.pca: 50 components are more than the 41 numbers",
        ),
    ],
)
def test_what_an_encoder_cannot_learn_from_is_refused(make_job: MakeJob, trainer: dict[str, Any], said: str) -> None:
    with (
        pytest.raises(ConfigError, match=said),
        Embedded(with_descriptors(make_job(), trainers={"one": trainer}), Settings()),
    ):
        pass

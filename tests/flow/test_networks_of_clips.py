"""Networks that see the frames of a clip at once, from videos to a model and its predictions; also in snippets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import essp
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts.fused_model import open_model
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob, asked_clips
from tests.harness.embedded_jobs import finish
from tests.lanes import often

pytestmark = [pytest.mark.lane("promises"), pytest.mark.usefixtures("sketched")]

FRAMES = 4
"""Of a clip, or of a snippet; the network sees half of them."""


def of_clips(spec: JobSpec, snippets: int) -> JobSpec:
    """The job with a network of clips alone. Its checkpoints are large, so they are saved as they are."""
    trainer = spec.trainers["rgb"].model_copy(
        update={
            "model": "mc3_18",
            "checkpoint": CheckpointSpec(parallel="off", codec="none", planes=False, delta=False),
        }
    )
    fields = spec.clip.model_dump() | {"frames": FRAMES * snippets, "snippets": snippets}
    return spec.model_copy(
        update={
            "clip": ClipSpec.model_validate(fields),
            "streams": {"rgb": StreamSpec(feature="rgb", params={"frames": FRAMES // 2})},
            "trainers": {"rgb": trainer},
        }
    )


@pytest.mark.parametrize("snippets", often([1, 2], 1))
def test_a_network_of_clips_is_trained_measured_and_predicts(make_job: MakeJob, videos: Path, snippets: int) -> None:
    """A model is asked with the same frames as it was measured on, whoever computes them; it sees each snippet alone,
    and the logits of all are averaged."""
    spec = of_clips(make_job(epochs=1, clips=4), snippets)
    with Embedded(spec, Settings()) as job:
        status = finish(job)
        assert job.adapters.cache.usage().keys == 0
    assert status.state is JobState.COMPLETED, status.reason
    assert CliRunner().invoke(app, ["report", spec.output]).exit_code == 0

    _, fused = open_model(Stores(("file:///",)), spec.output)
    answers = essp.predict(videos / "test", spec.output)
    assert fused.test is not None
    right = [answer.class_name == Path(answer.video).parent.name for answer in answers]
    assert np.mean(right) == fused.test.fused["top1"], "as evaluation has it"

    trained = essp.load_model(spec.output)
    video = videos / "test" / "left" / "0.mp4"
    [answer] = [each for each in answers if each.video.endswith("left/0.mp4")]
    stream = trained.streams["rgb"]
    clips = asked_clips(spec, video)
    seen = [essp.compute_feature(clip, "rgb", snippets=snippets, **stream.params) for clip in clips]
    assert {len(feature) for feature in seen} == {snippets * FRAMES // 2}
    scores = {"rgb": np.mean([stream.score(feature) for feature in seen], axis=0)}
    assert dict(zip(trained.classes, trained.fuse(scores)[0], strict=True)) == pytest.approx(answer.scores, abs=1e-5)

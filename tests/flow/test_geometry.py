"""Streams that look at the same clips in a geometry of their own, from videos to a model and its predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import essp
from essp.embedded.composition import Embedded
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from tests.flow.conftest import MakeJob, asked_clips
from tests.harness.embedded_jobs import complete


def with_smaller_flow(spec: JobSpec, crop: int, **params: Any) -> JobSpec:
    """The job, whose flow is of fewer and smaller frames."""
    flow = spec.streams["flow"]
    streams = spec.streams | {"flow": StreamSpec(feature="flow", params=flow.params | params)}
    trainer = spec.trainers["flow"]
    smaller = trainer.model_copy(update={"augment": trainer.augment.model_copy(update={"crop": crop})})
    return spec.model_copy(
        update={
            "clip": spec.clip.model_copy(update={"frames": 9}),
            "streams": streams,
            "trainers": spec.trainers | {"flow": smaller},
        }
    )


def test_a_model_is_asked_in_the_geometry_that_it_was_trained_in(make_job: MakeJob, videos: Path) -> None:
    spec = with_smaller_flow(make_job(epochs=1), 24, short_side=24, every=2)
    with Embedded(spec, Settings()) as job:
        complete(job)

    model = essp.load_model(spec.output)
    video = videos / "test" / "left" / "0.mp4"
    [answer] = essp.predict(video, spec.output)
    clips = asked_clips(spec, video)
    made = {
        name: [essp.compute_feature(clip, stream.feature, **stream.params) for clip in clips]
        for name, stream in model.streams.items()
    }
    assert min(made["rgb"][0].shape[1:3]) > min(made["flow"][0].shape[1:3]) == 24
    scores = {name: np.mean([model.streams[name].score(each) for each in made[name]], axis=0) for name in made}
    assert dict(zip(model.classes, model.fuse(scores)[0], strict=True)) == pytest.approx(answer.scores, abs=1e-5)


def test_a_crop_beyond_the_smaller_frames_is_refused(make_job: MakeJob) -> None:
    message = r"augment\.crop: 32 is larger than the smallest frames of stream 'flow', \d+ x 24 pixels; set it to 24"
    with (
        pytest.raises(ConfigError, match=message),
        Embedded(with_smaller_flow(make_job(), 32, short_side=24), Settings()),
    ):
        pass

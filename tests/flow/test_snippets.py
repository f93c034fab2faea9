"""Clips in snippets (TSN), from videos to a model and its predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import essp
from essp.catalog.build import BuildOptions, build
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_common.runtime.config import Settings
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.even import Uniform
from essp_engine.video.synthetic import Encoding, numbered, read_number, write_video
from tests.flow.conftest import MakeJob, asked_clips
from tests.harness.embedded_jobs import finish
from tests.harness.loops import in_groups
from tests.harness.refused import refused

pytestmark = [pytest.mark.lane("promises"), pytest.mark.usefixtures("sketched")]

SNIPPETS = 3


def in_snippets(spec: JobSpec, **clip: Any) -> JobSpec:
    fields = spec.clip.model_dump() | {"frames": 4 * SNIPPETS, "snippets": SNIPPETS} | clip
    return spec.model_copy(update={"clip": ClipSpec.model_validate(fields)})


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of videos whose frames show their numbers."""
    root = tmp_path_factory.mktemp("numbers")
    for split in ("train", "validation"):
        for label, frames in (("short", 20), ("long", 90)):
            (root / split / label).mkdir(parents=True)
            write_video(root / split / label / "a.mp4", numbered(frames, 160, 120), Encoding(gop=8))
    build(f"file://{root}", f"file://{root}/catalog.parquet", ("file:///",), BuildOptions("folders"))
    return root / "catalog.parquet"


@pytest.mark.parametrize(
    ("split", "part"), [("train", (0.0, 1.0)), ("validation", (0.0, 1.0)), ("train", (0.25, 0.75))]
)
def test_a_loop_gets_the_frames_of_each_snippet(numbers: Path, split: str, part: tuple[float, float]) -> None:
    clip = essp.Clip(frames=6, snippets=3, stride=2, size=(120, 160), part=part)
    options = {"clip": clip, "batch_size": 4, "split": split, "clips_per_epoch": 12, "seed": 5}
    with essp.Loader(numbers, **in_groups(options)) as loader:
        batches = list(loader)
        geometry = loader.clip
    view = essp.open_catalog(numbers).view(split)
    plan = (
        ClassBalanced(view, geometry, 12, 5, TRAIN, 0)
        if split == "train"
        else Uniform(view, geometry, clips_per_video=3)
    )
    shown = [[read_number(frame.numpy()) for frame in frames] for batch in batches for frames in batch.frames]
    planned = [plan.clip(index) for index in range(len(plan))]
    assert shown == [
        [first + place for first in (clip.first_frame, *clip.later) for place in (0, 2)] for clip in planned
    ]
    assert all(batch.targets is None for batch in batches)


def test_a_job_in_snippets_is_trained_measured_and_predicts(make_job: MakeJob, videos: Path) -> None:
    """A model is asked with the same snippets as it was measured on, whoever computes them."""
    spec = in_snippets(make_job(epochs=1))
    with Embedded(spec, Settings()) as job:
        status = finish(job)
        assert job.adapters.cache.usage().keys == 0
    assert status.state is JobState.COMPLETED, status.reason
    assert CliRunner().invoke(app, ["report", spec.output]).exit_code == 0

    model = essp.load_model(spec.output)
    assert model.clip.snippets == SNIPPETS
    video = videos / "test" / "left" / "0.mp4"
    [answer] = essp.predict(video, spec.output)
    clips = asked_clips(spec, video)
    made = {
        name: [essp.compute_feature(clip, stream.feature, snippets=SNIPPETS, **stream.params) for clip in clips]
        for name, stream in model.streams.items()
    }
    assert {name: feature[0].shape[0] for name, feature in made.items()} == {"rgb": SNIPPETS, "flow": SNIPPETS}
    scores = {name: np.mean([model.streams[name].score(each) for each in made[name]], axis=0) for name in made}
    assert dict(zip(model.classes, model.fuse(scores)[0], strict=True)) == pytest.approx(answer.scores, abs=1e-5)

    with pytest.raises(ConfigError, match=r"^segments: "):
        essp.predict(video, spec.output, segments=True)


def test_what_snippets_do_not_fit_is_refused(make_job: MakeJob, numbers: Path) -> None:
    with (
        pytest.raises(
            ConfigError, match=r"flow needs clips of 4 frames in each of 3 snippets, clip\.frames is 6; set it to 12"
        ),
        Embedded(in_snippets(make_job(), frames=6), Settings()),
    ):
        pass
    with refused("clip.snippets", "range"):
        essp.Loader(numbers, clip=essp.Clip(frames=6, snippets=0))
    with refused("targets.series", "conflict"):
        essp.Loader(numbers, clip=essp.Clip(frames=6, snippets=3), targets=essp.Targets(series={"a": [0]}))
    with refused("snippets", "conflict"):
        essp.compute_feature(np.zeros((6, 8, 8, 3), np.uint8), "rgb", snippets=4)

"""Untrimmed videos: labelled stretches are learned from, the rest is background, and both are told apart again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp_common import topics
from essp_common.artifacts.fused_model import open_model
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.video.synthetic import Encoding, texture, write_video
from tests.harness.command_line import essp as command
from tests.harness.embedded_jobs import complete

pytestmark = pytest.mark.lane("promises")

FPS, FRAMES = 25, 110
SEEN = (40, 69)
"""First and last frame that show the class: more than two thirds of a video do not."""
ROOTS = ("file:///",)


def picture(label: str) -> list[NDArray[np.uint8]]:
    """A still scene, into which a bar comes for a while."""
    scene = texture(64, 48, 5)
    frames = []
    for number in range(FRAMES):
        frame = scene.copy()
        if SEEN[0] <= number <= SEEN[1]:
            frame[:, 8:56] = 250 if label == "light" else 5
        frames.append(frame)
    return frames


@pytest.fixture(scope="module")
def untrimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of videos, and a list of what they show where."""
    root = tmp_path_factory.mktemp("untrimmed")
    lines = ["path,label,split,start_frame,end_frame"]
    for split, count in (("train", 3), ("validation", 2), ("test", 1)):
        for label in ("dark", "light"):
            for number in range(count):
                path = root / f"{split}-{label}-{number}.mp4"
                write_video(path, picture(label), Encoding(fps=FPS, gop=10))
                lines.append(f"{path.name},{label},{split},{SEEN[0]},{SEEN[1]}")
    (root / "labels.csv").write_text("\n".join(lines))
    options = BuildOptions("csv", background="nothing")
    build(f"file://{root}/labels.csv", f"file://{root}/catalog.parquet", ROOTS, options)
    return root


@pytest.fixture(scope="module")
def trained(untrimmed: Path) -> str:
    """The output of a job with a background class."""
    spec = JobSpec.model_validate(
        {
            "name": "seen",
            "output": f"file://{untrimmed}/run",
            "data": {"catalog": f"file://{untrimmed}/catalog.parquet"},
            "clip": {"frames": 2, "resize": {"mode": "crop", "height": 40, "width": 40}},
            "sampling": {"clips_per_epoch": 48, "clips_per_video": 2, "background": "nothing"},
            "trainers": {
                "rgb": {
                    "stream": "rgb",
                    "batch_size": 8,
                    "dropout": 0.0,
                    "threads": 1,
                    "optimizer": {"lr": 0.05},
                    "augment": {"crop": 32, "scales": [1.0], "evaluation_scale": 1.0},
                    "checkpoint": {"parallel": "thread"},
                }
            },
            "epochs": 6,
        }
    )
    with Embedded(spec, Settings()) as job:
        complete(job)
    return spec.output


def test_stretches_are_rows_and_the_rest_is_background(untrimmed: Path) -> None:
    rows = essp.open_catalog(untrimmed / "catalog.parquet").rows
    assert len(rows) == 3 * 12
    for row in rows:
        assert row.error is None
        ends = (row.first_frame, row.last_frame)
        assert ends in ([SEEN] if row.class_name != "nothing" else [(0, SEEN[0] - 1), (SEEN[1] + 1, FRAMES - 1)])
        assert row.split == Path(row.uri).name.partition("-")[0]


@pytest.mark.parametrize("highlight", [None, "actionness", "contrast"])
def test_videos_are_answered_with_what_they_show_and_where(
    untrimmed: Path, trained: str, highlight: str | None
) -> None:
    videos = [untrimmed / f"test-{label}-0.mp4" for label in ("dark", "light")]
    answers = essp.predict(videos, trained, segments=True, every_s=0.2, highlight=highlight)  # type: ignore[arg-type]
    assert open_model(Stores(ROOTS), trained)[1].background == "nothing"
    assert essp.load_model(trained).background == "nothing"
    for answer, label in zip(answers, ("dark", "light"), strict=True):
        assert answer.class_name == label
        assert answer.clips == 22
        assert set(answer.scores) == {"dark", "light"}
        assert sum(answer.scores.values()) == pytest.approx(1)
        [segment] = answer.segments
        assert segment.class_name == label
        assert segment.start_s == pytest.approx(SEEN[0] / FPS, abs=0.21)
        assert segment.end_s == pytest.approx((SEEN[1] + 1) / FPS, abs=0.21)


def test_a_video_may_have_more_clips_than_a_part(
    untrimmed: Path, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are saved in parts, of which any number belong to one video."""
    look = {"segments": True, "every_s": 0.1, "highlight": "contrast"}
    videos = [untrimmed / f"test-{label}-0.mp4" for label in ("dark", "light")]
    whole = essp.predict(videos, trained, **look)  # type: ignore[arg-type]
    monkeypatch.setattr(topics, "BLOCK_CLIPS", 16)  # as a batch, so that scores are the same to the last bit
    assert [answer.clips for answer in whole] == [44, 44]
    assert essp.predict(videos, trained, **look) == whole  # type: ignore[arg-type]


def test_what_was_found_is_compared_with_the_list(untrimmed: Path, trained: str) -> None:
    videos = [str(untrimmed / f"test-{label}-0.mp4") for label in ("dark", "light")]
    options = ["--segments", "--every", "0.2s", "--highlight", "actionness", "--json"]
    (untrimmed / "found.json").write_text(command("predict", *videos, "--model", trained, *options).stdout)
    lines = (untrimmed / "labels.csv").read_text().splitlines()
    (untrimmed / "truth.csv").write_text("\n".join([lines[0], *(line for line in lines if ",test," in line)]))
    seconds = [line.split(",") for line in (untrimmed / "truth.csv").read_text().splitlines()[1:]]
    rows = [f"{path},{label},{int(a) / FPS},{(int(b) + 1) / FPS}" for path, label, _, a, b in seconds]
    (untrimmed / "truth.csv").write_text("\n".join(["path,label,start_s,end_s", *rows]))
    told = command("evaluate", "segments", f"{untrimmed}/found.json", "--truth", f"{untrimmed}/truth.csv", "--json")
    assert json.loads(told.stdout)["mean"]["0.7"] == 1.0


def test_a_background_and_whole_files_are_not_asked_for_at_once(untrimmed: Path) -> None:
    with pytest.raises(ConfigError, match="--background: writes rows for parts of files"):
        command(
            "catalog", "build", f"{untrimmed}/labels.csv", "--out", f"{untrimmed}/x.parquet", "--background", "nothing",
            "--whole",
        )  # fmt: skip

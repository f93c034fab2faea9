"""What extracting first would cost, beside a job whose costs are known."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import cv2
import numpy as np
import pytest

import essp
from essp.capacity.extraction import DataSet, Extraction, Machines, check_extractable, comparison, sample
from essp.capacity.measuring import Costs
from essp.frame_folders import found_video
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import drifting, texture, write_video
from tests.harness.refused import refused

COSTS = Costs(
    {
        "master": 0.001,
        "decoder": 0.010,
        "extractor.flow": 0.006,
        "feed.a": 0.001,
        "feed.b": 0.002,
        "trainer.a": 1.0,
        "trainer.b": 1.0,
    },
    {"clip": 1e6, "flow": 5e5},
    1e5,
    400,
    20.0,
    epoch_clips=100,
)
FOUND = Extraction(3, 300, {"frames": 0.004, "flow": 0.002}, {"frames": 1e4, "flow": 4e3}, {}, 3.0, 0.006)
PRESENT = DataSet(100, 1.0, 90_000, 1e8)


def job(**clip: Any) -> JobSpec:
    """A trainer on one frame and one on a stack of three fields."""
    return JobSpec.model_validate(
        {
            "name": "planned",
            "output": "file:///none",
            "epochs": 10,
            "data": {"catalog": "file:///none.parquet"},
            "clip": {"frames": 4, "resize": {"mode": "exact", "height": 64, "width": 64}, **clip},
            "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 3}}},
            "trainers": {
                "a": {"stream": "rgb", "augment": {"crop": 56}},
                "b": {"stream": "flow", "augment": {"crop": 56}},
            },
        }
    )


def compared(asked: DataSet, costs: Costs = COSTS) -> dict[str, Any]:
    return comparison(job(), costs, FOUND, PRESENT, asked, Machines(1.0, 2))


def test_both_sides_are_added_up() -> None:
    """Streaming takes 20 ms a clip, loading 9 (of which 3 are crops, which both make), extracting 6 ms a frame."""
    found = compared(PRESENT)
    assert found["extract"]["core_hours"] == pytest.approx(90_000 * 0.006 / 3600)
    assert found["essp"]["epoch_core_hours"] == pytest.approx(100 * 0.020 / 3600, rel=0.01)
    assert found["extract"]["epoch_core_hours"] == pytest.approx(100 * 0.009 / 3600, rel=0.01)
    assert found["extract"]["bytes"] == {"frames": 900_000_000, "flow": 360_000_000}
    assert found["extract"]["times_videos"] == 12.6
    assert found["pays_after_epochs"] == 491  # 540 s / (2.0 s - 0.9 s)


def test_a_larger_set_has_more_frames_and_longer_epochs() -> None:
    found = compared(PRESENT.scaled(0, 50.0))
    assert found["data"] == {"videos": 5000, "hours": 50.0, "frames": 4_500_000, "bytes": 5_000_000_000}
    assert found["epoch_clips"] == 5000
    assert found["pays_after_epochs"] == 491
    assert found["machines"]["extract"] == 5  # 7.5 core-hours and 10 epochs, at 85 % of two cores
    assert PRESENT.scaled(200, 1.0) == DataSet(200, 1.0, 90_000, 1e8)


def test_extraction_never_pays_if_streaming_costs_less_than_reading_files() -> None:
    cheap = replace(COSTS, seconds={name: seconds / 10 for name, seconds in COSTS.seconds.items()})
    assert compared(PRESENT, cheap)["pays_after_epochs"] is None


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> VideoRow:
    """Thirty frames."""
    path = tmp_path_factory.mktemp("video") / "a.mp4"
    write_video(path, drifting(texture(96, 80, 1), 30, velocity=(2, 1)))
    *_, info = found_video(path.as_uri(), Stores(("file:///",)))
    facts = probe(str(path))
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    last = facts.frame_count - 1
    return VideoRow("a", path.as_uri(), "", "train", info.size_bytes, info.etag, last_frame=last, **found)


def test_a_sample_has_the_bytes_of_the_files_that_it_would_write(video: VideoRow) -> None:
    found = sample(job(), Catalog((video,)).rows, 1.0)
    frames = essp.decode(video, frames=30, size=(64, 64), interpolation="bilinear")
    files = [cv2.imencode(".jpg", frame[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1] for frame in frames]
    assert (found.videos, found.frames, found.files) == (1, 30, 3.0)
    assert found.bytes["frames"] == pytest.approx(np.mean([len(file) for file in files]))
    assert found.raw_bytes == {"frames": 64 * 64 * 3, "flow": 64 * 64 * 2}
    assert 0 < found.bytes["flow"] < found.raw_bytes["flow"]
    assert min(found.seconds.values()) > 0


def test_videos_that_are_shorter_than_a_clip_are_in_the_sample(video: VideoRow) -> None:
    found = sample(job(stride=20), Catalog((video,)).rows, 1.0)
    assert (found.frames, found.files) == (30, 3.0)
    bounded = {"mode": "bounded", "max_pixels": 12_544, "height": 256, "width": 256}
    assert sample(job(resize=bounded), Catalog((video,)).rows, 1.0).bytes["flow"] > 0


def test_what_is_extracted_already_has_nothing_to_compare() -> None:
    views = job().model_copy(update={"clip": job().clip.model_copy(update={"views": {"left": job().clip}})})
    with refused("--against", "unsupported"):
        check_extractable(views)

"""Clips by time, from videos of several frame rates to a loop and to a model: each frame is the one that is shown."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp_common.catalog.rows import VideoRow
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_engine.video.synthetic import Encoding, numbered, read_number, write_video
from tests.flow.conftest import MakeJob, RunExample
from tests.harness.embedded_jobs import finish
from tests.harness.loops import in_groups, taken
from tests.harness.refused import refused

pytestmark = pytest.mark.lane("promises")

VIDEOS = {
    "24.mp4": (96, Encoding(fps=24, gop=12, bframes=2)),
    "30.mp4": (120, Encoding(fps=30, gop=30)),
    "60.mkv": (240, Encoding(fps=60, gop=48, bframes=2)),
    "varying.mp4": (60, Encoding(fps=25, gop=12, bframes=2, intervals=(1, 1, 3))),
    "short.mp4": (9, Encoding(fps=30, gop=4)),
    "unseekable.avi": (60, Encoding(codec="mpeg4", fps=15, gop=250)),
}
SIZE = (120, 160)
RATE = {"fps": 4, "frames": 6}
Times = dict[str, NDArray[np.float64]]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog of videos with different frame rates, whose frames show their numbers."""
    root = tmp_path_factory.mktemp("rates")
    for number, (name, (count, encoding)) in enumerate(VIDEOS.items()):
        folder = root / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        write_video(folder / name, numbered(count, *SIZE[::-1]), encoding)
    build(f"file://{root}", f"file://{root}/catalog.parquet", ("file:///",), BuildOptions("folders"))
    return root / "catalog.parquet"


@pytest.fixture(scope="module")
def rows(mixed: Path) -> dict[str, VideoRow]:
    return {row.id: row for row in essp.open_catalog(mixed).rows}


@pytest.fixture(scope="module")
def times(rows: dict[str, VideoRow]) -> Times:
    """When the frames of each video appear, by PyAV alone; of an AVI, which has no timestamps, by its rate."""
    found = {}
    for name, row in rows.items():
        with av.open(row.uri.removeprefix("file://")) as container:
            frames = [frame.time for frame in container.decode(video=0)]
        steady = name.endswith(".avi")
        found[name] = np.arange(len(frames)) / 15 if steady else np.array(frames) - frames[0]
    return found


def loader(catalog: Path, clip: dict[str, Any], **options: Any) -> essp.Loader:
    given = {"clip": essp.Clip(size=SIZE, **clip), "batch_size": 4, "validation_fraction": 0, **options}
    return essp.Loader(catalog, **in_groups(given))


def shown(appears: NDArray[np.float64], moments: NDArray[np.float64]) -> list[int]:
    """The last frame that has appeared at each moment, to the tick of Matroska's clock."""
    return (np.searchsorted(appears, moments + 5e-4, side="right") - 1).tolist()


def moments(appears: NDArray[np.float64], first: int, clip: dict[str, Any]) -> NDArray[np.float64]:
    count = clip.get("max_frames") or clip.get("frames") or round(clip["seconds"] * clip["fps"])
    last, end = appears[-1], appears[-1] + np.median(np.diff(appears))
    period = clip.get("every_s") or 1 / (clip.get("fps") or count / clip.get("seconds", np.inf) or np.inf)
    if "spread" in clip or ("max_frames" in clip and end > count * period):
        return np.linspace(0, last, count)
    return appears[first] + np.arange(count) * period


POOLED = {"kind": "pooled", "clips_per_visit": 4, "window": 32, "clips_per_epoch": 40}


@pytest.mark.parametrize(
    ("clip", "options"),
    [
        (RATE, POOLED),
        ({"seconds": 1.5, "fps": 8}, {"kind": "exhaustive", "step": 7}),
        ({"seconds": 2.0, "frames": 4}, {"clips_per_epoch": 24}),
        ({"every_s": 0.5, "max_frames": 6}, {"clips_per_epoch": 12}),
        ({"frames": 5, "spread": "video"}, POOLED),
    ],
)
def test_each_frame_is_the_one_shown_at_its_moment(
    mixed: Path, rows: dict[str, VideoRow], times: Times, clip: dict[str, Any], options: dict[str, Any]
) -> None:
    seen = set()
    with loader(mixed, clip, **options) as clips:
        for batch in clips:
            meta = batch.meta
            for frames, video, first, last, at_s in zip(
                batch.frames.numpy(), *(meta[name] for name in ("video", "first_frame", "last_frame", "times_s")),
                strict=True,
            ):  # fmt: skip
                wanted = shown(times[video], moments(times[video], first, clip))
                assert ([read_number(frame) for frame in frames], last) == (wanted, wanted[-1]), video
                assert at_s == pytest.approx(times[video][wanted].tolist(), abs=2e-3)
                seen.add(video)
                if first % 5 == 0:
                    assert np.array_equal(essp.decode(rows[video], first, clip=clips.clip), frames)
    assert seen == set(rows) or (options.get("kind") != "exhaustive" and len(seen) > 3)


@pytest.mark.parametrize("clip", [RATE, {"frames": 6, "snippets": 2, "seconds": 0.5}])
def test_a_loop_goes_on_where_it_stopped(mixed: Path, clip: dict[str, Any]) -> None:
    with loader(mixed, clip, **POOLED) as clips:
        whole = taken(clips)
    with loader(mixed, clip, **POOLED) as clips:
        batches = iter(clips)
        begun = taken([next(batches), next(batches)])
        state = clips.state_dict()
    with loader(mixed, clip, **POOLED) as clips:
        clips.load_state_dict(state)
        assert begun + taken(clips) == whole


def test_a_video_that_cannot_be_decoded_is_replaced(mixed: Path, tmp_path: Path, times: Times) -> None:
    """By one of another rate, at its own moments."""
    for name in ("24.mp4", "60.mkv"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_bytes((mixed.parent / "train" / "a" / name).read_bytes())
    build(f"file://{tmp_path}", f"file://{tmp_path}/c.parquet", ("file:///",), BuildOptions("folders"))
    (tmp_path / "a" / "60.mkv").unlink()
    with loader(tmp_path / "c.parquet", RATE, clips_per_epoch=8, dead_ratio=1.0) as clips:
        batches = list(clips)
    assert sum(map(len, batches)) == 8
    for batch in batches:
        for frames, video, first in zip(batch.frames, batch.meta["video"], batch.meta["first_frame"], strict=True):
            assert Path(video).name == "24.mp4"
            of = next(name for name in times if name.endswith("24.mp4"))
            assert [read_number(frame.numpy()) for frame in frames] == shown(times[of], moments(times[of], first, RATE))


def test_the_example_shows_whole_videos_with_their_times(mixed: Path, example: RunExample) -> None:
    *lines, decoded = example("frames_at_a_rate.py", str(mixed), "--max-frames", "4", "--size", "40")
    assert len(lines) == len(VIDEOS)
    assert "train/a/24.mp4: (4, 40, 40, 3) at 0.00, 1.00, 2.00, 3.00 s" in lines
    assert "train/a/short.mp4: (2, 40, 40, 3) at 0.00, 0.27 s" in lines
    assert decoded == "in the middle of train/a/24.mp4: (120, 160, 3)"


def by_time(spec: JobSpec, **clip: Any) -> JobSpec:
    document = spec.model_dump(exclude_unset=True)
    given = {name: value for name, value in document["clip"].items() if name not in ("frames", "stride")}
    sampling = {k: v for k, v in document.get("sampling", {}).items() if k != "clips_per_video" or "fps" in clip}
    return JobSpec.model_validate({**document, "clip": given | clip, "sampling": sampling})


def test_a_model_answers_on_the_clips_that_it_learned_from(make_job: MakeJob, videos: Path) -> None:
    """And for the bytes of a video as for its path."""
    spec = by_time(make_job(epochs=1), frames=5, spread="video")
    with Embedded(spec, Settings()) as job:
        status = finish(job)
    assert status.state is JobState.COMPLETED, status.reason
    model = essp.load_model(spec.output)
    assert (model.clip.spread, model.clips_per_video) == ("video", 1)
    path = videos / "test" / "left" / "0.mp4"
    data = path.read_bytes()
    with path.open("rb") as file:
        answers = essp.predict([path, data, io.BytesIO(data), file, b"no video"], spec.output)
    assert [answer.video for answer in answers] == [str(path), "bytes 1", "bytes 2", str(path), "bytes 4"]
    assert [answer.scores for answer in answers[1:4]] == [answers[0].scores] * 3
    assert (answers[0].clips, answers[4].class_name) == (1, None)
    for options in ({"segments": True}, {"every_s": 0.5}):
        with refused(next(iter(options)), "conflict"):
            essp.predict(path, spec.output, **options)
    frames = essp.decode(path, clip=model.clip)
    assert [frame.tolist() for frame in frames] == [
        essp.decode(
            path, k * 23 // 4, clip=ClipSpec.model_validate({**model.clip.model_dump(), "frames": 1, "spread": None})
        )[0].tolist()
        for k in range(5)
    ]

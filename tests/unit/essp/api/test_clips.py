"""`essp.decode` gives the frames of a plain decode, from a file or from a row of a catalog."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import BadVideo, ConfigCode, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.refused import refused

FRAMES = 40


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(
        tmp_path_factory.mktemp("videos") / "a.mp4", numbered(FRAMES, 64, 48), Encoding(gop=8, bframes=2)
    )


@pytest.fixture(scope="module")
def row(video: Path) -> VideoRow:
    store = DirectoryStore.from_url(f"file://{video.parent}")
    info = store.head(video.name)
    facts = probe(str(video))
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return VideoRow(
        "a.mp4", f"file://{video}", "one", "train", info.size_bytes, info.etag, last_frame=FRAMES - 1, **found
    )


@pytest.fixture(scope="module")
def frames(video: Path) -> NDArray[np.uint8]:
    """All frames, by PyAV alone."""
    with av.open(str(video)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@pytest.mark.parametrize("start", [0, 7, 8, 23, 39])
def test_a_clip_is_that_of_a_plain_decode(video: Path, row: VideoRow, frames: NDArray[np.uint8], start: int) -> None:
    wanted = frames[np.minimum(start + 3 * np.arange(5), FRAMES - 1)]
    for given in (video, str(video), f"file://{video}", row):
        clip = essp.decode(given, start, frames=5, stride=3)
        assert (clip.dtype, clip.shape) == (np.dtype(np.uint8), (5, 48, 64, 3))
        assert np.array_equal(clip, wanted)


def test_several_clips_come_in_the_order_asked(video: Path, frames: NDArray[np.uint8]) -> None:
    clips = essp.decode(video, [20, 3], frames=4)
    assert np.array_equal(clips, np.stack([frames[20:24], frames[3:7]]))


def test_a_segment_counts_from_its_first_frame_and_never_leaves_it(row: VideoRow, frames: NDArray[np.uint8]) -> None:
    segment = replace(row, first_frame=10, last_frame=14)
    assert np.array_equal(essp.decode(segment, 2, frames=4), frames[[12, 13, 14, 14]])
    with refused("start", "range"):
        essp.decode(segment, 5)


def test_pictures_are_scaled(video: Path) -> None:
    assert essp.decode(video, frames=2, short_side=24).shape == (2, 24, 32, 3)
    assert essp.decode(video, frames=2, size=(20, 30)).shape == (2, 20, 30, 3)


@pytest.mark.parametrize(
    ("options", "field", "code"),
    [
        ({"start": -1}, "start", "range"),
        ({"start": FRAMES}, "start", "range"),
        ({"frames": 0}, "frames", "range"),
        ({"stride": 0}, "stride", "range"),
        ({"short_side": 0}, "short_side", "range"),
        ({"short_side": 8, "size": (8, 8)}, "size", "conflict"),
    ],
)
def test_what_makes_no_sense_is_refused(video: Path, options: dict[str, object], field: str, code: ConfigCode) -> None:
    with refused(field, code):
        essp.decode(video, **options)  # type: ignore[arg-type]


def test_a_bad_file_says_what_is_wrong(tmp_path: Path, video: Path, row: VideoRow) -> None:
    with pytest.raises(BadVideo) as absent:
        essp.decode(tmp_path / "absent.mp4")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(BadVideo) as text:
        essp.decode(tmp_path / "text.mp4")
    with pytest.raises(BadVideo) as other:
        essp.decode(replace(row, etag="another"))
    with pytest.raises(BadVideo, match="truncated: the file ends early"):
        essp.decode(replace(row, error="truncated: the file ends early"))
    assert [caught.value.kind for caught in (absent, text, other)] == ["vanished", "not_video", "changed"]


def test_a_catalog_opens_by_path_and_uri(tmp_path: Path, row: VideoRow) -> None:
    write_catalog(DirectoryStore.from_url(f"file://{tmp_path}"), "c.parquet", Catalog((row,)))
    for uri in (tmp_path / "c.parquet", f"file://{tmp_path}/c.parquet"):
        assert essp.open_catalog(uri).rows == (row,)
    with pytest.raises(NotFound, match=r"absent\.parquet"):
        essp.open_catalog(tmp_path / "absent.parquet")

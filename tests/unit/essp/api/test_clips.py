"""`essp.decode` gives the frames of a plain decode, from a file or from a row of a catalog."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import essp
from essp.api import contents
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
    return row_of(video)


def row_of(path: Path) -> VideoRow:
    """What a catalog says of a file."""
    info = DirectoryStore.from_url(f"file://{path.parent}").head(path.name)
    facts = probe(str(path))
    found = {field.name: getattr(facts, field.name) for field in fields(facts)}
    return VideoRow(
        path.name, f"file://{path}", "one", "train", info.size_bytes, info.etag, last_frame=FRAMES - 1, **found
    )


@pytest.fixture(scope="module")
def frames(video: Path) -> NDArray[np.uint8]:
    """All frames, by PyAV alone."""
    with av.open(str(video)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


ODD = {
    "varying.mp4": Encoding(gop=12, bframes=2, intervals=(1, 1, 3)),
    "varying.mkv": Encoding(gop=12, bframes=2, intervals=(2, 0.5, 1, 3)),
    "milliseconds.mkv": Encoding(fps=30, gop=12, bframes=2),
    "one-keyframe.mp4": Encoding(fps=24, gop=250, bframes=3),
    "mpeg4.mp4": Encoding(codec="mpeg4", fps=60, gop=9, bframes=1),
}


class Timed(NamedTuple):
    """A video as PyAV alone decodes it."""

    path: Path
    frames: NDArray[np.uint8]
    appear_s: NDArray[np.float64]

    def shown(self, seconds: Sequence[float]) -> NDArray[np.uint8]:
        """The last frame that has appeared at each moment; one appears up to a microsecond early."""
        return self.frames[np.searchsorted(self.appear_s, np.array(seconds) + 1e-6, side="right") - 1]


@pytest.fixture(scope="module", params=ODD)
def odd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Timed:
    path = tmp_path_factory.mktemp("odd") / request.param
    write_video(path, numbered(FRAMES, 64, 48), ODD[request.param])
    with av.open(str(path)) as container:
        decoded = [(frame.time, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    appear_s = np.array([time for time, _ in decoded], np.float64)
    return Timed(path, np.stack([frame for _, frame in decoded]), appear_s)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_frames_are_those_shown_at_their_moments(odd: Timed, data: st.DataObject) -> None:
    """In any order, with repetitions; also when a frame appears, as PyAV and ffprobe give it."""
    exact = st.sampled_from(odd.appear_s.tolist())
    last_s = float(odd.appear_s[-1])
    moments = st.floats(0, last_s) | exact | exact.map(lambda second: round(second, 6))
    seconds = data.draw(st.lists(moments, min_size=1, max_size=8))
    assert np.array_equal(essp.decode(odd.path, at_s=seconds), odd.shown(seconds))
    assert np.array_equal(essp.decode(odd.path.read_bytes(), at_s=np.array(seconds)), odd.shown(seconds))


def test_a_catalog_knows_when_each_frame_appears(odd: Timed) -> None:
    """Where it has only a rate, too, though a container has rounded the times of frames to its clock."""
    row = row_of(odd.path)
    assert np.array_equal(essp.decode(row, at_s=odd.appear_s), odd.frames)
    middles = (odd.appear_s[:-1] + odd.appear_s[1:]) / 2
    assert np.array_equal(essp.decode(row, at_s=middles[::-1]), odd.frames[-2::-1])


def test_one_moment_gives_one_frame(video: Path, row: VideoRow, frames: NDArray[np.uint8]) -> None:
    assert np.array_equal(essp.decode(video, at_s=0.5), frames[12])
    assert np.array_equal(essp.decode(row, at_s=[0.999, 0.04, 1]), frames[[24, 1, 25]])
    assert essp.decode(row, at_s=[0.5, 1], short_side=24).shape == (2, 24, 32, 3)
    assert essp.decode(row, at_s=[]).shape == (0, 48, 64, 3)


@pytest.mark.parametrize(("pixels", "channels"), [("rgb", 3), ("yuv420", 3), ("gray", 1), ("gray16", 1)])
def test_no_starts_give_no_clips(row: VideoRow, pixels: str, channels: int) -> None:
    clip = essp.Clip(frames=2, size=(48, 64), pixels=pixels)  # type: ignore[arg-type]
    one, none = essp.decode(row, [0], clip=clip), essp.decode(row, [], clip=clip)
    assert one.shape[1:] == none.shape[1:] == (2, 48, 64, channels)
    assert len(none) == 0
    assert none.dtype == one.dtype


def test_what_a_quick_build_has_not_verified_is_verified_at_moments_too(row: VideoRow) -> None:
    """Frames of another size came scaled to the size that the file's index declares."""
    narrow = replace(row, width=row.width // 2, unproven="pixels")
    for options in ({"start": 12}, {"at_s": 0.5}):
        with pytest.raises(BadVideo, match="build the catalog again, without --quick"):
            essp.decode(narrow, **options)


def test_a_video_shows_nothing_before_its_first_frame_and_after_its_end(
    tmp_path: Path, video: Path, row: VideoRow, frames: NDArray[np.uint8]
) -> None:
    for second in (-0.01, FRAMES / 25, 100):
        for one in (video, row):
            with refused("at_s", "range"):
                essp.decode(one, at_s=[0, second])
    assert np.array_equal(essp.decode(video, at_s=[-1, 1.5999, 100], strict=False), frames[[0, -1, -1]])
    late = replace(row, start_s=0.5)
    with refused("at_s", "range"):
        essp.decode(late, at_s=0.4)
    assert np.array_equal(essp.decode(late, at_s=[0.4, 0.5, 0.58], strict=False), frames[[0, 0, 2]])
    with refused("at_s", "unsupported"):
        essp.decode(replace(row, fps=0.0), at_s=0.4)


def test_a_damaged_file_is_decoded_around_its_damage_if_not_strict(tmp_path: Path) -> None:
    """By frame and by time, without a catalog; a file that is cut off ends where it was cut."""
    path = write_video(tmp_path / "a.avi", numbered(FRAMES), Encoding(codec="mjpeg", pixel_format="yuvj420p"))
    frames = essp.decode(path, frames=FRAMES)
    with av.open(str(path)) as container:
        start, size = [(packet.pos or 0, packet.size) for packet in container.demux(video=0)][7]
    data = path.read_bytes()
    damaged, cut = data[:start] + bytes(size) + data[start + size :], data[: start + size // 2]
    for bad in (damaged, cut):
        with pytest.raises(BadVideo):
            essp.decode(bad)
    shown = [0, 1, 2, 3, 4, 5, 6, 6, *range(8, FRAMES)]
    assert np.array_equal(essp.decode(damaged, frames=FRAMES, strict=False), frames[shown])
    assert np.array_equal(essp.decode(damaged, at_s=[0.28, 0.32], strict=False), frames[[6, 8]])
    assert np.array_equal(essp.decode(cut, frames=7, strict=False), frames[:7])


def test_seconds_of_a_segment_count_from_its_first_frame(row: VideoRow, frames: NDArray[np.uint8]) -> None:
    segment = replace(row, first_frame=10, last_frame=14)
    assert np.array_equal(essp.decode(segment, at_s=[0, 0.04, 0.199]), frames[[10, 11, 14]])
    for second in (-0.04, 0.2):
        with refused("at_s", "range"):
            essp.decode(segment, at_s=second)
    assert np.array_equal(essp.decode(segment, at_s=[-1, 1], strict=False), frames[[10, 14]])


def test_contents_are_decoded_as_files_are(video: Path, frames: NDArray[np.uint8]) -> None:
    data = video.read_bytes()
    with video.open("rb") as file, video.open("rb", buffering=0) as unbuffered:
        file.seek(100)
        given: list[Any] = [data, bytearray(data), memoryview(data), io.BytesIO(data), file, unbuffered, Pipe(data)]
        for one in given:
            assert np.array_equal(essp.decode(one, [20, 3], frames=4), np.stack([frames[20:24], frames[3:7]]))
        assert not file.closed
    for bad in (b"", b"no video"):
        with pytest.raises(BadVideo):
            essp.decode(bad)


def test_what_cannot_be_read_twice_has_to_fit_into_memory(monkeypatch: pytest.MonkeyPatch, video: Path) -> None:
    monkeypatch.setattr(contents, "_MOST_UNSEEKABLE_BYTES", 1000)
    unseekable: Any = Pipe(video.read_bytes())
    with refused("video", "range"):
        essp.decode(unseekable)


class Pipe(io.RawIOBase):
    """A binary file that is not seekable."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        return self._data.readinto(buffer)


@pytest.mark.parametrize("start", [0, 7, 8, 23, 39])
def test_a_clip_is_that_of_a_plain_decode(video: Path, row: VideoRow, frames: NDArray[np.uint8], start: int) -> None:
    wanted = frames[np.minimum(start + 3 * np.arange(5), FRAMES - 1)]
    for one in (video, str(video), f"file://{video}", row):
        clip = essp.decode(one, start, frames=5, stride=3)
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
        ({"clip": essp.Clip(size=32), "interpolation": "bicubic"}, "interpolation", "conflict"),
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

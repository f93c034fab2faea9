"""Frames found by their times, and pictures as planes."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.conversion import FrameConverter
from essp_engine.video.planar import PlanarConverter
from essp_engine.video.planes import grey16
from essp_engine.video.synthetic import Encoding, numbered, read_number, write_video
from essp_engine.video.timed import TimedReader

FRAMES = 24


@pytest.mark.parametrize(
    ("name", "encoding", "lookahead"),
    [
        ("av1.mp4", Encoding("av1", gop=2), 1),
        ("plain.mp4", Encoding("h264", gop=6), 1),
        ("reordered.mp4", Encoding("h264", gop=8, bframes=2), 3),
        ("matroska.mkv", Encoding("h264", gop=8, bframes=2), 3),
        ("varying.mp4", Encoding("h264", gop=6, intervals=(1, 1, 3)), 1),
    ],
)
def test_each_frame_is_found_by_its_time(tmp_path: Path, name: str, encoding: Encoding, lookahead: int) -> None:
    path = write_video(tmp_path / name, numbered(FRAMES, 96, 64), encoding)
    reader, converter = TimedReader(str(path)), PlanarConverter()
    assert (len(reader.times), reader.times.lookahead) == (FRAMES, lookahead)
    with av.open(str(path)) as container:
        shown = [float(frame.time or 0) for frame in container.decode(video=0)]
    numbers, off_s = reader.times.nearest(np.array(shown))
    assert numbers.tolist() == list(range(FRAMES))
    assert off_s.max() < 1e-9
    for wanted in ([5], [0, 1, 2, 3], [7, 20], list(range(FRAMES)), [23], [4]):
        found = [
            (number, read_number(converter.rgb(frame).transpose(1, 2, 0))) for number, frame in reader.frames(wanted)
        ]
        assert found == [(number, number) for number in wanted]
    reader.close()


def test_the_nearest_frame_says_how_far_off_it_is(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(4, 96, 64), Encoding("h264", fps=10))
    times = TimedReader(str(path)).times
    numbers, off_s = times.nearest(np.array([-1.0, 0.04, 0.06, 0.31, 9.0]))
    assert numbers.tolist() == [0, 0, 1, 3, 3]
    assert off_s == pytest.approx([1.0, 0.04, 0.04, 0.01, 8.7])


def test_a_damaged_frame_is_an_error_and_never_another_one(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, 96, 64), Encoding("h264", gop=6))
    with av.open(str(path)) as container:
        packets = [(packet.pos or 0, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    begin, size = packets[12]
    data[begin + 4 : begin + size] = b"\xff" * (size - 4)
    path.write_bytes(data)
    reader = TimedReader(str(path))
    with pytest.raises(BadVideo, match=r"frame 1[2-5]"):
        list(reader.frames([12, 13, 15]))
    assert [number for number, _ in reader.frames([3, 20])] == [3, 20]


@pytest.mark.parametrize("name", ["yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray", "rgb24"])
@pytest.mark.parametrize(("width", "height"), [(96, 64), (66, 50), (64, 37)])
def test_planes_have_the_pixels_of_packed_pictures(name: str, width: int, height: int) -> None:
    random = np.random.default_rng(0)
    frame = VideoFrame(width, height, name)
    for plane in frame.planes:
        bits = random.integers(0, 1024 if "10" in name else 256, plane.buffer_size // (2 if "10" in name else 1))
        plane.update(bits.astype(np.uint16 if "10" in name else np.uint8).tobytes())
    packed = np.empty((height, width, 3), np.uint8)
    FrameConverter().write(frame, Resize(), packed)
    converter = PlanarConverter()
    for _ in range(2):
        assert np.array_equal(converter.rgb(frame), packed.transpose(2, 0, 1))


@pytest.mark.parametrize(("name", "most"), [("gray12le", 4095), ("gray16le", 65535), ("gray10le", 1023), ("gray", 255)])
def test_grey_values_keep_all_their_bits(name: str, most: int) -> None:
    drawn = np.random.default_rng(0).integers(0, most + 1, (5, 70))
    values = drawn.astype(np.uint16) if most > 255 else drawn.astype(np.uint8)
    frame = VideoFrame.from_ndarray(values, name)
    found = grey16(frame)
    assert found.dtype == np.uint16
    assert np.array_equal(found, values)
    with pytest.raises(BadVideo, match="rgb24"):
        grey16(VideoFrame(8, 8, "rgb24"))

"""Colour profiles in PNG end no process. What is tried runs in a process of its own, since they did."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from av.packet import Packet

from essp_engine.video.png_profiles import without_profile
from tests.harness.record_sets import image

FRAMES = 4
SHAPE = (24, 28, 3)


def profiled(data: bytes, count: int = 1) -> bytes:
    """A PNG file with so many profiles behind its header."""
    chunk = b"iCCPsRGB profile\0\0" + zlib.compress(bytes(128))
    whole = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data[:33] + whole * count + data[33:]


def png(number: int) -> bytes:
    return cv2.imencode(".png", image(number, 0)[..., ::-1])[1].tobytes()


def said(script: str, given: bytes = b"") -> bytes:
    """What a process answers that runs this."""
    done = subprocess.run([sys.executable, "-c", script], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "png.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("png", rate=10)
        stream.height, stream.width, stream.pix_fmt = *SHAPE[:2], "rgb24"
        for number in range(FRAMES):
            (packet,) = stream.encode(av.VideoFrame.from_ndarray(image(number, 0), format="rgb24"))
            changed = Packet(profiled(bytes(packet)))
            changed.pts, changed.dts, changed.time_base = packet.pts, packet.dts, packet.time_base
            changed.stream, changed.is_keyframe = stream, True
            container.mux(changed)
    return path


def test_profiles_are_left_out_and_nothing_else() -> None:
    data = png(1)
    for count in range(3):
        assert without_profile(profiled(data, count)) == data
    for cut in (0, 7, 9, 40, len(data) - 1):
        assert without_profile(data[:cut]) == data[:cut]


def test_an_image_with_a_profile_is_read() -> None:
    script = (
        "import sys, numpy as np; from essp_engine.video.images import ImageDecoder;"
        "from essp_common.pb.v1.messages_pb2 import Resize; data = sys.stdin.buffer.read();"
        f"target = np.zeros({SHAPE}, np.uint8); images = ImageDecoder(2**20);"
        "[images.write(data, None, Resize(mode=Resize.NONE), target) for _ in range(3)];"
        "sys.stdout.buffer.write(target.tobytes())"
    )
    found = np.frombuffer(said(script, profiled(png(1))), np.uint8).reshape(SHAPE)
    np.testing.assert_array_equal(found, image(1, 0))


def test_a_video_of_images_with_profiles_is_read(video: Path) -> None:
    script = (
        "import sys, numpy as np; from essp_engine.video.reader import Reader;"
        "from essp_common.pb.v1.messages_pb2 import Resize, Seed;"
        f"target = np.zeros({(FRAMES, *SHAPE)}, np.uint8);"
        f"seed = Seed(frame_count={FRAMES}, stride=1, last_frame={FRAMES - 1});"
        f"errors = Reader({str(video)!r}).read([seed], Resize(mode=Resize.NONE), [target]); assert errors == [None];"
        "sys.stdout.buffer.write(target.tobytes())"
    )
    found = np.frombuffer(said(script), np.uint8).reshape(FRAMES, *SHAPE)
    np.testing.assert_array_equal(found, [image(number, 0) for number in range(FRAMES)])


def test_so_it_is_by_a_check(video: Path) -> None:
    script = f"from essp.catalog.check.reading import decoded; print(decoded({str(video)!r}).frames)"
    assert int(said(script)) == FRAMES

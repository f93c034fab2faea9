"""MCAP recordings: each frame as it was recorded, in step with the other cameras and with the numbers beside it."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp.catalog.build import Built, build
from essp.catalog.mcap_recording import read
from essp_common.catalog.targets import unpack
from essp_common.errors import BadVideo
from essp_engine.video.synthetic import numbered
from tests.flow.conftest import RunExample
from tests.harness.recordings import (
    ARM,
    BEGIN_NS,
    TOP,
    WRIST,
    WRIST_LATE_S,
    compressed,
    moments,
    position,
    write_json,
    write_protobuf,
    write_ros2,
)

pytestmark = pytest.mark.lane("promises")

COUNT = 24
PICTURES = list(numbered(COUNT, 64, 48))
OTHERS = list(numbered(COUNT, 64, 48, 1))


def built(root: Path) -> Built:
    return build(f"file://{root}", f"file://{root}/runs.parquet", ("file:///",))


def test_the_cameras_of_a_recording_are_views_of_one_event(tmp_path: Path) -> None:
    jpegs = compressed(PICTURES, "mjpeg")
    write_ros2(tmp_path / "pick/one.mcap", jpegs, OTHERS)
    found = built(tmp_path)
    assert found.recognised == "mcap: 1 MCAP recording (pick/one.mcap)"
    rows = {row.view: row for row in found.catalog.rows}
    assert {(row.error, row.event, row.class_name, row.split) for row in rows.values()} == {
        (None, "pick/one", "pick", "train")
    }
    decoder = av.CodecContext.create("mjpeg", "r")
    assert isinstance(decoder, av.VideoCodecContext)
    for number, data in enumerate(jpegs):
        (plain,) = decoder.decode(av.Packet(data))
        np.testing.assert_array_equal(essp.decode(rows[TOP], number, frames=1)[0], plain.to_ndarray(format="rgb24"))
    np.testing.assert_array_equal(essp.decode(rows[WRIST], frames=COUNT), OTHERS)

    states = [BEGIN_NS + 5_000_000 + 10_000_000 * number for number in range(100 * COUNT // 20)]
    for view, late_s in ((TOP, 0.0), (WRIST, WRIST_LATE_S)):
        series = unpack(rows[view].targets).series
        assert series.keys() == {f"{ARM}.position", f"{ARM}.command"}
        last = [bisect_right(states, stamp) - 1 for stamp in moments(COUNT, late_s)]
        wanted = [position(number) if number >= 0 else [np.nan, np.nan] for number in last]
        np.testing.assert_array_equal(series[f"{ARM}.position"], wanted)

    of_top = unpack(rows[TOP].targets).series[f"{ARM}.position"]
    clip = {TOP: essp.Clip(frames=1, size=(48, 64)), WRIST: essp.Clip(frames=1, size=(48, 64))}
    targets = essp.Targets(series={f"{ARM}.position": [0.0, 0.15, 30.0]})
    with essp.Loader(
        tmp_path / "runs.parquet",
        clip=clip,
        batch_size=4,
        sampling=essp.Sampling(kind="exhaustive"),
        limits=essp.Limits(epochs=1),
        validation_fraction=0,
        targets=targets,
    ) as loader:
        for batch in loader:
            assert batch.targets is not None
            for clip_number, shown in enumerate(batch.meta["frame_numbers"]):
                first, second = shown[TOP][0], shown[WRIST][0]
                there = [stamp for stamp in moments(COUNT, WRIST_LATE_S) if stamp <= moments(COUNT)[first] + 1_000_000]
                assert second == len(there) - 1
                np.testing.assert_array_equal(batch.frames[WRIST][clip_number, 0].numpy(), OTHERS[second])
                later = min(first + 3, COUNT - 1)  # frames come in a pattern of three
                told = batch.targets.values[f"{ARM}.position"][clip_number].numpy()
                np.testing.assert_array_equal(told, [of_top[first], of_top[later], of_top[-1]])
                padded = batch.targets.is_pad[f"{ARM}.position"][clip_number].tolist()
                assert padded == [False, first + 3 > COUNT - 1, True]


def test_a_recording_is_read_again_only_if_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "one.mcap"
    write_json(path, compressed(PICTURES, "libx264", tune="zerolatency", sc_threshold="0"), "h264")
    found = built(tmp_path)
    (row,) = found.catalog.rows
    assert any("/map is left out: flatbuffer messages" in note for note in found.notes)
    copied = (tmp_path / "runs.videos/one/camera_0.mp4").stat()
    assert (row.error, row.codec, row.frame_count, row.keyframe_frame[:3]) == (None, "h264", COUNT, (0, 5, 10))
    assert (row.meta["task"], row.meta["recording"]) == ("lift the cube", "one.mcap")
    assert built(tmp_path).read == 0
    assert (tmp_path / "runs.videos/one/camera_0.mp4").stat() == copied
    write_json(path, compressed(PICTURES[:10], "libx264", tune="zerolatency"), "h264")
    (tmp_path / "runs.videos/gone").mkdir()
    (tmp_path / "runs.videos/one/camera_0.mp4").rename(tmp_path / "runs.videos/gone/camera_0.mp4")
    assert [row.frame_count for row in built(tmp_path).catalog.rows] == [10]
    (tmp_path / "runs.videos/one/camera_0.mp4").unlink()
    assert [row.error for row in built(tmp_path).catalog.rows] == [None]


def test_nothing_is_written_over_or_removed_that_no_build_has_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.mcap", compressed(PICTURES, "libx264", tune="zerolatency"), "h264")
    mine = tmp_path / "runs.videos/a/camera_0.mp4"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    (row,) = built(tmp_path).catalog.rows
    assert "camera_0.mp4 was not written by ESSP" in (row.error or "")
    assert mine.read_bytes() == b"mine"
    mine.unlink()
    within = tmp_path / "a/camera_1.mcap"  # its copies lie in a folder within that of the other's
    write_json(within, compressed(PICTURES, "libx264", tune="zerolatency"), "h264")
    assert [row.error for row in built(tmp_path).catalog.rows] == [None, None]
    write_json(tmp_path / "a.mcap", compressed(PICTURES[:10], "libx264", tune="zerolatency"), "h264")
    assert sorted(row.frame_count for row in built(tmp_path).catalog.rows) == [10, COUNT]
    assert (tmp_path / "runs.videos/a/camera_1/camera_0.mp4").is_file()


@pytest.mark.parametrize(("codec", "form"), [("libsvtav1", "av1"), ("libvpx-vp9", "vp9"), ("libx265", "h265")])
def test_compressed_video_is_copied_as_it_is(tmp_path: Path, codec: str, form: str) -> None:
    options = {
        "libsvtav1": {"svtav1-params": "pred-struct=1"},
        "libvpx-vp9": {"lag-in-frames": "0"},
        "libx265": {"x265-params": "bframes=0:repeat-headers=1:log-level=none"},
    }
    packets = compressed(PICTURES, codec, **options[codec])
    write_protobuf(tmp_path / "one.mcap", packets, form)
    found = read(str(tmp_path / "one.mcap"), str(tmp_path))
    series = unpack((tmp_path / found.folder / found.cameras[0].series).read_bytes()).series
    assert {name: values.tolist() for name, values in series.items()} == {
        "/imu.turn.x": list(range(COUNT)),
        "/imu.turn.y": [-number for number in range(COUNT)],
    }
    with av.open(str(tmp_path / found.folder / found.cameras[0].video)) as container:
        times_us = [round(1_000_000 * float(frame.time or 0)) for frame in container.decode(video=0)]
    assert times_us == [(stamp - BEGIN_NS) // 1000 for stamp in moments(COUNT)]


def depth_pngs(distances: Iterable[NDArray[np.uint16]]) -> list[bytes]:
    """Messages of ROS's `compressedDepth`: its settings, which PNG does not need, and a PNG of 16 bits."""
    return [struct.pack("<iff", 0, 0.0, 0.0) + cv2.imencode(".png", each)[1].tobytes() for each in distances]


def test_distances_stay_distances(tmp_path: Path) -> None:
    distances = [np.add.outer(np.arange(48), 900 * np.arange(64)).astype(np.uint16) + n for n in range(COUNT)]
    packed = depth_pngs(distances)
    write_ros2(tmp_path / "one.mcap", packed, distances, "16UC1", "16UC1; compressedDepth png")
    for row in built(tmp_path).catalog.rows:
        assert "a depth camera" in row.notes
        frames = essp.decode(row, clip=essp.Clip(frames=COUNT, size=(48, 64), pixels="gray16"))
        np.testing.assert_array_equal(frames[..., 0], distances)


@pytest.mark.parametrize(
    ("form", "says"), [("32FC1; compressedDepth png", "inverses of distances"), ("16UC1; compressedDepth rvl", "rvl")]
)
def test_distances_that_are_stored_otherwise_are_refused(tmp_path: Path, form: str, says: str) -> None:
    """ROS stores distances in metres as 16 bits of their inverses: as millimetres they would be wrong."""
    data = depth_pngs([np.full((48, 64), 1000, np.uint16)])
    data = data if "png" in form else [data[0][:12] + b"\x40\x00\x30\x00rvl"]
    write_ros2(tmp_path / "one.mcap", data, OTHERS, form=form)
    with pytest.raises(BadVideo, match=says):
        read(str(tmp_path / "one.mcap"), str(tmp_path))


@pytest.mark.parametrize("what", ["cut", "none", "wrong"])
def test_a_recording_without_usable_pictures_says_why(tmp_path: Path, what: str) -> None:
    path = tmp_path / "runs/one.mcap"
    packets = compressed(PICTURES, "libx264", tune="zerolatency")
    write_json(path, packets if what != "none" else [], "vp9" if what == "wrong" else "h264")
    if what == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    says = {"cut": "mcap recover", "none": "no topic has pictures", "wrong": f"{TOP}: .*vp9"}
    with pytest.raises(BadVideo, match=says[what]):
        read(str(path), str(tmp_path))
    (row,) = built(path.parent).catalog.rows
    assert row.error is not None
    assert row.uri.endswith("one.mcap")


def test_the_example_learns_from_recordings(tmp_path: Path, example: RunExample) -> None:
    write_ros2(tmp_path / "one.mcap", compressed(PICTURES, "mjpeg"), OTHERS)
    built(tmp_path)
    arm = ("--state", f"{ARM}.position", "--action", f"{ARM}.command")
    small = (*arm, "--size", "32", "--batch-size", "8", "--horizon", "4", "--epochs", "1")
    [line] = example("robot_policy.py", str(tmp_path / "runs.parquet"), WRIST, *small)
    assert line.startswith("epoch 1: loss ")

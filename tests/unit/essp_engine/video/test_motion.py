"""Motion vectors of videos whose every pixel moves by a known distance."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek
from essp_engine.video.motion import repeated
from essp_engine.video.motion_layout import UNIT, motion_shape
from essp_engine.video.probe import probe
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, drifting, write_video

VELOCITY = (3, 2)
"""Right and down, in pixels a frame."""
COUNT = 26


def speckled(width: int, height: int) -> NDArray[np.uint8]:
    """A picture in which an encoder finds each block again."""
    coarse = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return coarse.repeat(8, axis=0).repeat(8, axis=1)


def video(folder: Path, **encoding: object) -> Path:
    chosen = Encoding(**encoding)  # type: ignore[arg-type]
    suffix = "mkv" if chosen.codec == "mpeg2" else "mp4"
    options = {"b-pyramid": "none"} if chosen.codec == "h264" else {"b": "4M"}
    chosen = Encoding(**{**encoding, "options": options})  # type: ignore[arg-type]
    return write_video(folder / f"a.{suffix}", drifting(speckled(320, 240), COUNT, VELOCITY), chosen)


def motion(path: Path, resize: Resize, first: int = 1, frames: int = 12, stride: int = 1) -> NDArray[np.int16]:
    facts = probe(str(path))
    seed = Seed(first_frame=first, frame_count=frames, stride=stride, last_frame=facts.frame_count - 1)
    if facts.seekable:
        at = [k for k in zip(facts.keyframe_frame, facts.keyframe_pts, strict=True) if k[0] <= first][-1]
        seed.seek.CopyFrom(Seek(frame_index=at[0], pts=at[1]))
    size = resize.height, resize.width
    target, moved = np.zeros((frames, *size, 3), np.uint8), np.zeros((frames, *motion_shape(*size)), np.int16)
    with Reader(str(path), lookahead=facts.lookahead, motion=True) as reader:
        assert reader.read([seed], resize, [target], motions=[moved]) == [None]
    return moved


def medians(moved: NDArray[np.int16]) -> NDArray[np.float64]:
    """Of each frame, in pixels; edges that wrap around do not count."""
    found: NDArray[np.float64] = np.median(moved.reshape(len(moved), -1, 2), axis=1) / UNIT
    return found


@pytest.mark.parametrize("bframes", [0, 2])
@pytest.mark.parametrize("codec", ["h264", "mpeg4", "mpeg2"])
def test_the_motion_is_that_of_the_picture(tmp_path: Path, codec: str, bframes: int) -> None:
    path = video(tmp_path, codec=codec, bframes=bframes)
    found = medians(motion(path, Resize(mode=Resize.EXACT, height=240, width=320)))
    assert np.abs(found - VELOCITY).max() <= 0.25, found


def test_the_motion_is_in_pixels_of_the_clip_from_one_of_its_frames_to_the_next(tmp_path: Path) -> None:
    path = video(tmp_path)
    scaled = motion(path, Resize(mode=Resize.CROP, height=120, width=120), stride=2, frames=6)
    assert np.abs(medians(scaled) - np.array(VELOCITY)).max() <= 0.25  # half the size, twice the time


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_the_motion_turns_with_the_picture(tmp_path: Path, rotation: int) -> None:
    """As the frames show it: the best shift from each frame to the next, found by trying."""
    path = video(tmp_path, rotation=rotation)
    facts = probe(str(path))
    resize = Resize(mode=Resize.EXACT, height=facts.height, width=facts.width)
    frames = np.zeros((3, facts.height, facts.width, 3), np.uint8)
    with Reader(str(path)) as reader:
        reader.read([Seed(first_frame=3, frame_count=3, stride=1, last_frame=COUNT - 1)], resize, [frames])
    shifts = [(dx, dy) for dx in range(-3, 4) for dy in range(-3, 4)]
    for before, after in pairwise(frames.astype(int)):
        seen = min(shifts, key=lambda d: np.abs(np.roll(before, (d[1], d[0]), (0, 1)) - after)[8:-8, 8:-8].mean())
        assert np.abs(medians(motion(path, resize, first=4, frames=2)) - seen).max() <= 0.25


def test_cells_move_by_themselves(tmp_path: Path) -> None:
    """The left half stands still."""
    picture = speckled(320, 240)
    moving = drifting(picture, COUNT, VELOCITY)
    halves = (np.concatenate([picture[:, :160], frame[:, 160:]], axis=1) for frame in moving)
    path = write_video(tmp_path / "a.mp4", halves, Encoding())
    found = motion(path, Resize(mode=Resize.EXACT, height=240, width=320), frames=8)
    assert np.abs(np.median(found[:, :, :18], axis=(1, 2))).max() == 0
    assert np.abs(np.median(found[:, :, 22:], axis=(1, 2)) / UNIT - VELOCITY).max() <= 0.25


def test_frames_without_vectors_repeat_the_motion_beside_them() -> None:
    unknown = -(2**15)
    moved = np.array([unknown, 3, unknown, unknown, 5]).reshape(5, 1, 1, 1).repeat(2, axis=3).astype(np.int16)
    repeated(moved)
    assert moved[:, 0, 0, 0].tolist() == [3, 3, 3, 3, 5]
    nothing = np.full((2, 1, 1, 2), unknown, np.int16)
    repeated(nothing)
    assert not nothing.any()


def test_a_codec_without_vectors_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.webm", drifting(speckled(64, 64), 5), Encoding(codec="vp9"))
    with pytest.raises(BadVideo) as error:
        Reader(str(path), motion=True)
    assert error.value.kind == "format"


def test_the_frames_are_the_same_with_and_without_motion(tmp_path: Path) -> None:
    path = video(tmp_path, bframes=2)
    seed = Seed(first_frame=5, frame_count=8, stride=2, last_frame=COUNT - 1)
    resize = Resize(mode=Resize.EXACT, height=64, width=64)
    made = []
    for moves in (False, True):
        target = np.zeros((8, 64, 64, 3), np.uint8)
        moved = [np.zeros((8, *motion_shape(64, 64)), np.int16)] if moves else []
        with Reader(str(path), motion=moves) as reader:
            assert reader.read([seed], resize, [target], motions=moved) == [None]
        made.append(target)
    without, with_motion = made
    assert np.array_equal(without, with_motion)

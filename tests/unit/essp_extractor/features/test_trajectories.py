"""Dense and improved trajectories on textures, cameras and objects whose motion is known."""

from __future__ import annotations

from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from essp_extractor.features.trajectories import Trajectories, sound
from essp_extractor.motion.tracking import Settings, Step, Tracker, scale_sizes
from essp_extractor.motion.volumes import Volume
from tests.harness.scenes import STILL, Clip, flow_of, moving, places, ready, rotation, texture, with_object

LENGTH = 15
SIZE = (96, 128)
SHAPE = slice(10, 10 + 2 * LENGTH)
DESCRIPTORS = {"hog": slice(40, 136), "hof": slice(136, 244), "mbhx": slice(244, 340), "mbhy": slice(340, 436)}
FINE: dict[str, Any] = {"scales": 1, "preset": "medium"}


def tracks(clip: Clip, name: str = "trajectories", **params: Any) -> NDArray[np.float32]:
    """The rows that are tracks."""
    rows = ready(name, **params).extract(clip)[0, :, 0]
    count = int((rows[:, 6] > 0).sum())
    assert not rows[count:].any(), "what follows the tracks is zeros"
    assert (rows[:count, 6] > 0).all()
    return rows[:count]


def test_tracks_follow_a_moving_texture() -> None:
    found = tracks(moving(STILL, (2.0, -1.0), 16), **FINE)
    assert len(found) > 200
    middle = (np.abs(found[:, 1:3] - (64, 48)) < (24, 16)).all(axis=1)
    steps = found[middle, SHAPE].reshape(-1, LENGTH, 2)
    path = LENGTH * np.hypot(2, 1)
    assert np.abs(steps.mean(axis=1) * path - (2.0, -1.0)).max() < 0.15
    assert np.allclose(found[middle, 5], path, rtol=0.05)
    assert np.allclose(np.linalg.norm(steps, axis=2).sum(axis=1), 1, atol=1e-3)
    # Sixteen even steps of 2 px are spread by 2 px times the deviation of 0 to 15.
    assert np.allclose(found[middle, 3], 2 * np.arange(16).std(), rtol=0.08)
    assert np.allclose(found[middle, 4], np.arange(16).std(), rtol=0.15)


def test_facts_of_a_track_are_in_pixels_and_frames_of_the_clip() -> None:
    found = tracks(moving(STILL, (2.0, -1.0), 16))
    assert set(np.round(found[:, 6] ** 2)) >= {1, 2, 4}
    assert np.all(found[:, 0] == 15)
    assert np.allclose(found[:, 7:9] * (128, 96), found[:, 1:3], rtol=1e-5)
    assert np.allclose(found[:, 9], 15 / 16)
    for scale in np.unique(found[:, 6]):
        length = found[found[:, 6] == scale, 5]
        assert np.median(length) == pytest.approx(LENGTH * np.hypot(2, 1), rel=0.1), f"scale {scale}"


@cache
def object_tracks(name: str) -> NDArray[np.float32]:
    """Of a square that moves by 2, 1 before a camera that makes everything else move by -2.5, 0.5."""
    return tracks(with_object(moving(STILL, (-2.5, 0.5), 16), (20, 20), (2, 1), 36), name, **FINE)


def analytic(step: NDArray[np.float64], steps: int, shift: tuple[float, float] = (0.0, 0.0)) -> list[Step]:
    """The steps of `moving`, with its true flow."""
    clip, flow = moving(step, shift, steps, SIZE), flow_of(step, shift, SIZE).astype(np.float32)
    return [Step(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY), flow, flow) for frame in clip]


def followed(steps: list[Step], spacing: int = 5, length: int = LENGTH) -> Tracker:
    settings = Settings(Volume("test", 32, length, 2, 3), spacing, 1, 8, 0.4)
    tracker = Tracker(cv2, settings, 1.0, len(steps))
    for step in steps:
        tracker.advance(step)
    return tracker


def test_points_go_where_the_flow_leads() -> None:
    step = rotation(1.5)
    (found,) = followed(analytic(step, LENGTH)).finished
    centre = np.array([63.5, 47.5])
    place = found.points[0] - centre
    for points in found.points[1:]:
        place = place @ step.T
        # A point reads the flow of the pixel it is in: up to 0.7 px away, where the flow differs by 0.018 px a step.
        assert np.abs(points - centre - place)[found.alive].max() < 0.3
    assert np.allclose(found.motions, np.diff(found.points, axis=0), atol=1e-4)


def test_points_are_followed_and_described_as_plain_loops_do() -> None:
    steps = analytic(rotation(4.0), LENGTH, shift=(1.0, 0.0))
    (found,) = followed(steps).finished
    height, width = SIZE
    for track in range(0, len(found.alive), 40):
        x, y = found.points[0, track]
        inside, histogram = True, np.zeros((3, 2, 2, 9))
        for number, step in enumerate(steps):
            column, row = (int(np.clip(np.rint(v), 0, n - 1)) for v, n in ((x, width), (y, height)))
            left, top = min(max(column - 16, 0), width - 32), min(max(row - 16, 0), height - 32)
            for cell_y in range(2):
                for cell_x in range(2):
                    rows, columns = top + 16 * cell_y, left + 16 * cell_x
                    cell = step.motion[rows : rows + 16, columns : columns + 16].reshape(-1, 2)
                    histogram[number // 5, cell_y, cell_x] += oriented(cell)
            dx, dy = neighbourhood_median(step.flow, column, row)
            x, y = x + dx, y + dy
            inside &= bool(0 <= x <= width - 1 and 0 <= y <= height - 1)
            if not inside:
                break
        assert found.alive[track] == inside
        if inside:
            assert np.allclose(found.points[-1, track], (x, y), atol=1e-3)
            assert np.allclose(found.histograms["hof"][track], histogram, rtol=0.02, atol=5)


def oriented(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(vectors, axis=1)
    moving_on = lengths > 0.4
    bins = np.arctan2(vectors[:, 1], vectors[:, 0]) % (2 * np.pi) * 4 / np.pi
    histogram = np.zeros(9)
    for share, offset in ((1 - bins % 1, 0), (bins % 1, 1)):
        np.add.at(histogram, (bins.astype(int)[moving_on] + offset) % 8, (lengths * share)[moving_on])
    histogram[8] = (~moving_on).sum()
    return histogram


def neighbourhood_median(flow: NDArray[np.float32], x: int, y: int) -> tuple[float, float]:
    padded = np.pad(flow, ((1, 1), (1, 1), (0, 0)), mode="edge")[y : y + 3, x : x + 3]
    return float(np.median(padded[..., 0])), float(np.median(padded[..., 1]))


def test_points_are_set_where_there_is_structure_and_none_is_near() -> None:
    grey = np.full(SIZE, 100, np.uint8)
    grey[:, 64:] = cv2.cvtColor(texture(places(96, 64), 5), cv2.COLOR_RGB2GRAY)
    still = np.zeros((*SIZE, 2), np.float32)
    tracker = followed([Step(grey, still, still)] * 6, spacing=8, length=3)
    first, *later = tracker.finished
    x = first.points[0, :, 0]
    assert x.min() >= 60
    assert len(x) > 80
    assert all(len(tracks.alive) == 0 for tracks in later[:2]), "the first ones are still there"
    assert np.array_equal(later[2].points[0], first.points[0]), "they are done, and their places free"


def test_points_are_set_again_where_the_picture_moves_on() -> None:
    found = tracks(moving(STILL, (5.0, 0.0), 13), length=6, **FINE)
    ends, counts = np.unique(found[:, 0], return_counts=True)
    assert set(ends) == {6, 7, 8, 9, 10, 11, 12}
    assert counts[0] > 3 * counts[1], "one frame on, only the side where the picture came in is free"
    entered = found[found[:, 0] == 8]
    assert np.median(entered[:, 1]) < 20


def test_scales_end_where_a_volume_fills_the_picture() -> None:
    settings = Settings(Volume("test", 32, 15, 2, 3), 5, 8, 8, 0.4)
    assert scale_sizes(settings, 20, 20) == [(1.0, 20, 20)]
    assert [size[1:] for size in scale_sizes(settings, 96, 128)] == [(96, 128), (68, 91), (48, 64), (34, 45)]
    assert len(scale_sizes(settings, 4000, 4000)) == 8


def test_rows_are_ordered_by_motion_and_cut_off() -> None:
    clip = with_object(moving(STILL, (-1.0, 0.0), 6), (20, 20), (3, 1), 36)
    every = tracks(clip, length=3, **FINE)
    assert len(every) > 40
    assert np.all(np.diff(every[:, 5]) < 1e-3)
    few = ready("trajectories", count=20, length=3, **FINE).extract(clip)[0, :, 0]
    assert np.array_equal(few, every[:20])


@pytest.mark.parametrize("name", ["trajectories", "improved_trajectories"])
def test_what_stands_still_leaves_no_tracks(name: str) -> None:
    assert len(tracks(moving(STILL, (0, 0), 16, size=(48, 64)), name)) == 0
    assert len(tracks(moving(STILL, (0.2, 0), 16, size=(48, 64)), name)) == 0
    assert len(tracks(np.full((16, 48, 64, 3), 5, np.uint8), name)) == 0


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([0.3] * 15, False),  # rests: a deviation of 1.4 px
        ([0.5] * 15, True),
        ([0] * 7 + [25] + [0] * 7, False),  # jumps
        ([1] * 7 + [25] + [1] * 7, True),  # 0.64 of the path
        ([0] * 7 + [15] + [0] * 7, True),
        ([13] * 15, False),  # wanders: a deviation of 60 px
    ],
)
def test_tracks_that_rest_wander_or_jump_are_left_out(steps: list[float], expected: bool) -> None:
    x = np.cumsum([10, *steps])
    level, upright = np.stack([x, 0 * x + 5], axis=1), np.stack([0 * x + 5, x], axis=1)
    assert list(sound(np.stack([level, upright], axis=1).astype(np.float32))) == [expected, expected]


def test_improved_trajectories_are_on_what_moves_in_the_scene() -> None:
    plain, improved = object_tracks("trajectories"), object_tracks("improved_trajectories")

    def on_object(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
        # The middle of the square is at 53, 45.5 on average; its tracks begin anywhere on it.
        inside: NDArray[np.bool_] = (np.abs(rows[:, 1:3] - (53, 45.5)) < 24).all(axis=1)
        return inside

    assert len(improved) < 0.5 * len(plain)
    assert on_object(improved[:40]).all(), "the others are of what the object covers and uncovers"
    assert on_object(plain[:40]).mean() < 0.7
    inner = improved[(np.abs(improved[:, 1:3] - (53, 45.5)) < 8).all(axis=1)]
    steps = inner[:, SHAPE].reshape(-1, LENGTH, 2).mean(axis=1) * LENGTH
    truth = np.array([2 + 2.5, 1 - 0.5])
    assert np.abs(steps - truth / np.linalg.norm(truth)).max() < 0.08


def test_improved_trajectories_of_a_camera_alone_are_none() -> None:
    clip = moving(rotation(1.0), (2.0, 1.0), 16)
    assert len(tracks(clip, **FINE)) > 100
    assert len(tracks(clip, "improved_trajectories", **FINE)) <= 3


def test_descriptors_are_normalised_each_by_itself() -> None:
    plain, improved = object_tracks("trajectories"), object_tracks("improved_trajectories")
    for name, columns in DESCRIPTORS.items():
        assert np.allclose(np.linalg.norm(plain[:, columns], axis=1), 1, atol=0.01), name
        assert np.allclose((improved[:, columns] ** 2).sum(axis=1), 1, atol=0.01), name


def test_shared_descriptors_are_those_of_the_grid_where_nothing_moves_the_volume() -> None:
    """A track that does not move covers the same volume as `hog`; this test keeps it although it is still."""
    steps = [Step(step.grey, step.flow * 0, step.flow) for step in analytic(rotation(2), LENGTH)]
    (found,) = followed(steps, spacing=16).finished
    clip = np.stack([cv2.cvtColor(step.grey, cv2.COLOR_GRAY2RGB) for step in steps], dtype=np.uint8)
    grid = ready("hog", stride=16).extract(clip)[0]
    for track, (x, y) in enumerate(found.points[0].astype(int)):
        row, column = (y - 16) / 16, (x - 16) / 16
        if row.is_integer() and column.is_integer() and 0 <= row < grid.shape[0] and 0 <= column < grid.shape[1]:
            mine = found.histograms["hog"][track].ravel()
            assert np.abs(mine / np.linalg.norm(mine) - grid[int(row), int(column)]).max() < 1e-3


def test_paths_are_the_tracks_to_be_drawn() -> None:
    extractor = ready("trajectories", **FINE)
    assert isinstance(extractor, Trajectories)
    feature = extractor.extract(moving(STILL, (2.0, -1.0), 16))
    paths = extractor.paths(feature)
    assert len(paths) == (feature[0, :, 0, 6] > 0).sum()
    for path, row in zip(paths[:50], feature[0, :50, 0], strict=True):
        assert path.shape == (LENGTH + 1, 2)
        assert np.allclose(path.mean(axis=0), row[1:3], atol=0.01)
        assert np.allclose(path.std(axis=0), row[3:5], atol=0.05)
    middle = [path for path in paths if (np.abs(path.mean(axis=0) - (64, 48)) < (20, 12)).all()]
    assert np.allclose(middle[0][-1] - middle[0][0], (30, -15), atol=2)


@pytest.mark.parametrize("name", ["trajectories", "improved_trajectories"])
def test_tracks_are_the_same_each_time(name: str) -> None:
    clip = with_object(moving(rotation(1), (1.0, 0.5), 8), (20, 20), (2, 1), 36)
    assert np.array_equal(ready(name, length=6).extract(clip), ready(name, length=6).extract(clip))

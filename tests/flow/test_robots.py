"""LeRobot folders: each item has the frames that LeRobot's rule gives for its timestamps, and the values beside it."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import essp
from essp.catalog.build import BuildOptions, Built, build
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.notes import is_depth, lines
from essp_common.catalog.targets import unpack
from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from tests.flow.conftest import RunExample
from tests.harness.loops import in_groups
from tests.harness.refused import refused
from tests.harness.robots import CAMERAS, EPISODES, FPS, by_timestamp, state, write_depth, write_robot

pytestmark = pytest.mark.lane("promises")

TOP = CAMERAS[0]
FIRST = [sum(e.length for e in EPISODES[:n]) for n in range(len(EPISODES))]
"""Of each episode, the index of its first frame in the data set."""
BEGINS = [sum(e.length for e in EPISODES[:n] if e.file == EPISODES[n].file) for n in range(len(EPISODES))]
"""And in its MP4."""


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("robot"))


@pytest.fixture(scope="module")
def top(robot: Path) -> Path:
    """The catalog of the camera at the top."""
    built(robot, "top.parquet", BuildOptions(camera=TOP))
    return robot / "top.parquet"


def built(robot: Path, name: str, options: BuildOptions = BuildOptions()) -> Built:  # noqa: B008
    return build(f"lerobot://{robot}", f"file://{robot / name}", ("file:///",), options)


def loader(catalog: Path, **options: Any) -> essp.Loader:
    clip = essp.Clip(frames=3, stride=2, size=(48, 64))
    places = {"kind": "exhaustive", "clips_per_visit": 1}
    return essp.Loader(
        catalog, **in_groups({"clip": clip, "batch_size": 4, "validation_fraction": 0, **places, **options})
    )


def test_an_episode_is_a_row_for_each_camera(robot: Path) -> None:
    found = built(robot, "all.parquet")
    assert found.ignored == {}
    assert found.recognised.startswith("lerobot: meta/info.json of version v3.0; cameras: observation.images.top, obs")
    rows = {row.id: row for row in found.catalog.rows}
    assert len(rows) == len(EPISODES) * len(CAMERAS)
    for number, episode in enumerate(EPISODES):
        for camera in CAMERAS:
            row = rows[f"episode_{number:06d}/{camera}"]
            assert row.error is None
            assert (row.first_frame, row.last_frame - row.first_frame + 1) == (BEGINS[number], episode.length)
            assert (row.class_name, row.split) == (episode.task, "validation" if number == 3 else "train")
            assert row.group == f"episode_{number:06d}"
            assert row.meta == {"episode_index": number, "camera": camera, "robot_type": "arm"}
            assert row.uri.endswith(f"videos/{camera}/chunk-000/file-{episode.file:03d}.mp4")


@pytest.mark.parametrize(("codec", "gop"), [("av1", 4), ("h264", 250)])
def test_items_are_those_of_lerobot(tmp_path: Path, codec: str, gop: int) -> None:
    robot = write_robot(tmp_path, codec, gop)
    catalog = robot / "c.parquet"
    built(robot, "c.parquet", BuildOptions(camera=TOP))
    deltas = {"action": [-0.3, 0, 0.1, 0.2], "observation.state": [-0.2, 0.0]}
    seen = set()
    with loader(catalog, series=deltas) as clips:
        for batch in clips:
            targets = batch.targets
            assert targets is not None
            for at, number in enumerate(batch.meta["episode_index"]):
                episode, first_frame = EPISODES[number], batch.meta["first_frame"][at]
                current = first_frame - BEGINS[number] + 4  # the last frame of the clip
                seen.add((number, current))
                steps = [BEGINS[number] / FPS + (current + step) / FPS for step in (-4, -2, 0)]
                path = robot / f"videos/{TOP}/chunk-000/file-{episode.file:03d}.mp4"
                assert np.array_equal(batch.frames[at].numpy(), by_timestamp(path, steps))
                assert targets.values["index"][at].flatten().tolist() == [
                    FIRST[number] + current + step for step in (-4, -2, 0)
                ]
                for name, offsets in (("action", (-3, 0, 1, 2)), ("observation.state", (-2, 0))):
                    inside = [min(max(current + step, 0), episode.length - 1) for step in offsets]
                    index = [FIRST[number] + place for place in inside]
                    expected = (
                        [[1000.0 + i, float(place)] for i, place in zip(index, inside, strict=True)]
                        if name == "action"
                        else [state(i) for i in index]
                    )
                    assert targets.values[name][at].tolist() == expected
                    outside = [not 0 <= current + step < episode.length for step in offsets]
                    assert targets.is_pad[name][at].tolist() == outside
    assert seen == {(number, place) for number in range(3) for place in range(4, EPISODES[number].length)}


def test_cameras_show_the_same_moments_with_the_same_seed(robot: Path, top: Path) -> None:
    built(robot, "wrist.parquet", BuildOptions(camera=CAMERAS[1]))
    moments = []
    for catalog in (top, robot / "wrist.parquet"):
        with loader(catalog, seed=3) as clips:
            moments.append([(b.meta["video"], b.meta["first_frame"]) for b in clips])
    assert moments[0] == moments[1]


def test_episodes_of_one_file_are_trained_on_where_none_is_set_aside(top: Path, tmp_path: Path) -> None:
    """A small data set is one MP4, and the segments of one file stay together."""
    rows = essp.open_catalog(top).rows
    alone = Catalog(tuple(replace(row, split="train") for row in rows if row.uri == rows[0].uri))
    write_catalog(DirectoryStore(str(tmp_path)), "one.parquet", alone)
    with refused("validation_fraction", "empty"):
        loader(tmp_path / "one.parquet", validation_fraction=0.15)
    with loader(tmp_path / "one.parquet") as clips:
        assert {video for batch in clips for video in batch.meta["video"]} == {row.id for row in alone.rows}


def test_seconds_that_are_between_frames_are_refused(top: Path) -> None:
    with (
        loader(top, series={"action": [0.05]}) as clips,
        refused("targets.series.action", "invalid"),
    ):
        next(iter(clips))
    with refused("targets.series", "unknown"):
        loader(top, series={"nothing": [0]})


@pytest.mark.parametrize("folder", ["meta/episodes", "data"])
def test_a_damaged_table_is_named(robot: Path, tmp_path: Path, folder: str) -> None:
    robot = shutil.copytree(robot, tmp_path / "robot")
    path = next((robot / folder).rglob("*.parquet"))
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[: len(whole) // 2], whole[:4] + b"\xff" * 64 + whole[68:]):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=f"{path.name} cannot be read: "):
            built(robot, "c.parquet", BuildOptions(camera=TOP))


@pytest.mark.parametrize(
    ("folder", "column", "value"),
    [
        *itertools.product(
            ["meta/episodes"],
            ["episode_index", "length", "dataset_from_index", "data/chunk_index", f"videos/{TOP}/file_index"],
            [None, "x", 0.5, math.nan],
        ),
        *itertools.product(["meta/episodes"], [f"videos/{TOP}/from_timestamp"], [None, "x", math.nan, math.inf]),
        *itertools.product(["meta/episodes"], ["tasks"], ["grasp", 3]),
        *itertools.product(["data"], ["index"], [None, "x", math.nan, [0]]),
    ],
)
def test_values_that_are_not_what_they_have_to_be_are_named(
    robot: Path, tmp_path: Path, folder: str, column: str, value: object
) -> None:
    robot = shutil.copytree(robot, tmp_path / "robot")
    path = next((robot / folder).rglob("*.parquet"))
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, pa.array([value] * len(table))), path)
    with pytest.raises(ConfigError, match=f"{path.name}.*column {column}"):
        built(robot, "c.parquet", BuildOptions(camera=TOP))


@pytest.mark.parametrize(
    ("name", "value"),
    [("fps", "x"), ("fps", -1), ("fps", math.nan), ("features", ["a"]), ("features", {"a": "b"}), ("splits", ["a"]),
     ("splits", {"val": "0:2,3:4"}), ("splits", {"val": "\u00b2:3"}),
     ("data_path", 7), ("video_path", "{nope}"), ("video_path", "{chunk_index.nope}")],
)  # fmt: skip
def test_so_are_those_of_the_description(robot: Path, tmp_path: Path, name: str, value: object) -> None:
    robot = shutil.copytree(robot, tmp_path / "robot")
    info = robot / "meta/info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {name: value}))
    with pytest.raises(ConfigError, match=rf"info\.json: {name}"):
        built(robot, "c.parquet", BuildOptions(camera=TOP))


def test_frames_off_their_timestamps_are_noted_or_refused(tmp_path: Path) -> None:
    robot = write_robot(tmp_path)
    info = robot / "meta/info.json"
    info.write_text(info.read_text().replace('"fps": 10', '"fps": 9.9'))
    strict = BuildOptions(camera=TOP, tolerance_s=1e-4)
    errors = {row.error or "" for row in built(robot, "c.parquet", strict).catalog.rows}
    assert all("off its timestamp" in error for error in errors)
    nearest = built(robot, "c.parquet", BuildOptions(camera=TOP))
    notes = [dict(lines(row.notes)) for row in nearest.catalog.rows]
    assert all(note["offset"].startswith("frames are shown up to ") for note in notes)
    assert len({note["offset"] for note in notes}) > 1  # each row has its own, although several share a file
    assert any("4 rows with frames off their timestamps" in note for note in nearest.notes)
    tolerant = built(robot, "d.parquet", BuildOptions(camera=TOP, tolerance_s=0.04))
    assert [row.error for row in tolerant.catalog.rows] == [None] * 4
    (robot / f"videos/{TOP}/chunk-000/file-001.mp4").unlink()
    info.write_text(info.read_text().replace('"fps": 9.9', '"fps": 10'))
    exact = built(robot, "c.parquet", BuildOptions(camera=TOP))
    assert [row.error for row in exact.catalog.rows] == [None, None, None, "missing: no file"]
    assert {row.notes for row in exact.catalog.rows} == {""}  # those of the catalog before do not stay


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_older_layouts_give_the_same_rows(robot: Path, tmp_path: Path, version: str) -> None:
    newer = {row.id: row for row in built(robot, "all.parquet").catalog.rows}
    older = write_robot(tmp_path / "older", version=version)
    rows = {row.id: row for row in built(older, "all.parquet").catalog.rows}
    assert rows.keys() == newer.keys()
    for name, row in rows.items():
        assert row.error is None
        assert (row.class_name, row.split, row.group) == tuple(
            getattr(newer[name], field) for field in ("class_name", "split", "group")
        )
        assert row.uri.endswith(f"videos/chunk-000/{name.partition('/')[2]}/{name.partition('/')[0]}.mp4")
        assert (row.first_frame, row.last_frame) == (0, newer[name].last_frame - newer[name].first_frame)
        series, expected = (unpack(each.targets).series for each in (row, newer[name]))
        assert series.keys() == expected.keys()
        assert all(np.array_equal(series[key], values) for key, values in expected.items())


def test_values_of_several_lengths_are_no_series(robot: Path, tmp_path: Path) -> None:
    robot = shutil.copytree(robot, tmp_path / "robot")
    path = robot / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("action")
    lists = [[0.0], [1.0, 1.0, 1.0], *[[float(row)] * 2 for row in range(2, len(table))]]  # 2 a row in the mean
    pq.write_table(table.set_column(place, "action", pa.array(lists)), path)
    table = pq.read_table(path).drop_columns(["next.done"])
    missing = pa.array([None if row == 1 else row for row in range(len(table))], pa.list_(pa.int64()).value_type)
    pq.write_table(table.set_column(table.schema.get_field_index("task_index"), "task_index", missing), path)
    info = robot / "meta/info.json"
    document = json.loads(info.read_text())
    document["features"] |= {"subtask": {"dtype": "string", "shape": [1]}, "front": {"dtype": "image", "shape": [3]}}
    info.write_text(json.dumps(document))
    found = built(robot, "c.parquet")
    series = [unpack(row.targets).series for row in found.catalog.rows]
    assert all("observation.state" in each and not each.keys() & {"action", "next.done", "subtask"} for each in series)
    notes = " ".join(found.notes)
    assert all(name in notes for name in ("action", "next.done", "subtask", "front", "task_index"))
    assert "observation" not in notes


def test_cameras_whose_pictures_lie_in_tables_are_refused(robot: Path, tmp_path: Path) -> None:
    robot = shutil.copytree(robot, tmp_path / "robot")
    info = robot / "meta/info.json"
    document = json.loads(info.read_text())
    document["features"][CAMERAS[1]] |= {"dtype": "image"}
    info.write_text(json.dumps(document))
    rows = built(robot, "c.parquet").catalog.rows
    assert {row.meta["camera"] for row in rows if row.error is None} == {TOP}
    with pytest.raises(ConfigError, match=f"--camera: .*{CAMERAS[1]} .*are images.*convert_image_to_video"):
        built(robot, "c.parquet", BuildOptions(camera=CAMERAS[1]))
    document["features"][TOP] |= {"dtype": "image"}
    info.write_text(json.dumps(document | {"video_path": None}))
    with pytest.raises(ConfigError, match=r"are images.*convert_image_to_video"):
        built(robot, "c.parquet")


@pytest.mark.parametrize("tolerance_s", [0.0, 0.05, math.nan, -1])
def test_a_tolerance_that_any_frame_or_none_would_meet_is_refused(robot: Path, tolerance_s: float) -> None:
    with pytest.raises(ConfigError, match=r"--tolerance-s: .*half a frame"):
        built(robot, "c.parquet", BuildOptions(camera=TOP, tolerance_s=tolerance_s))


@pytest.mark.parametrize("where", [("info", "is_depth_map"), ("info", "video.is_depth_map"), (None, "is_depth_map")])
def test_a_depth_camera_is_never_taken_for_colours(robot: Path, tmp_path: Path, where: tuple[str | None, str]) -> None:
    copy = tmp_path / "robot"
    shutil.copytree(robot, copy)
    path = copy / "meta/info.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    inside, name = where
    feature = document["features"][CAMERAS[1]]
    (feature if inside is None else feature.setdefault(inside, {}))[name] = True
    path.write_text(json.dumps(document), encoding="utf-8")
    rows = built(copy, "all.parquet").catalog.rows
    assert {row.view: is_depth(row.notes) for row in rows if row.error is None} == {TOP: False, CAMERAS[1]: True}
    far = next(row for row in rows if is_depth(row.notes))
    with pytest.raises(ConfigError, match=r"depth camera.*gray16"):
        essp.decode(far)
    with essp.stream(far) as windows:
        assert list(windows) == []
        assert "depth camera" in str(windows.errors[far.id])
    with pytest.raises(ConfigError, match=rf"{CAMERAS[1]} has distances.*gray16"):
        essp.Loader(copy / "all.parquet", clip=dict.fromkeys(CAMERAS, essp.Clip(frames=1)), validation_fraction=0)


def test_a_loader_gives_colours_and_distances_of_one_moment(tmp_path: Path) -> None:
    robot = write_robot(tmp_path / "robot")
    codes = write_depth(robot, CAMERAS[1])
    built(robot, "depth.parquet")
    clip = {
        TOP: essp.Clip(frames=1, size=(48, 64)),
        CAMERAS[1]: essp.Clip(frames=2, size=(24, 32), pixels="gray16"),
    }
    taken = 0
    with essp.Loader(
        robot / "depth.parquet",
        clip=clip,
        batch_size=4,
        sampling=essp.Sampling(kind="exhaustive"),
        limits=essp.Limits(epochs=1),
        validation_fraction=0,
        targets=essp.Targets(series={"index": [0.0]}),
    ) as loader:
        for batch in loader:
            far = batch.frames[CAMERAS[1]]
            assert batch.targets is not None
            assert (far.dtype, far.shape[1:]) == (torch.uint16, (2, 24, 32, 1))
            for frames, index in zip(far, batch.targets.values["index"].flatten().tolist(), strict=True):
                wanted = np.stack([codes[int(index) - back][1::2, 1::2] for back in (1, 0)])
                np.testing.assert_array_equal(frames[..., 0].numpy(), wanted)
                taken += 1
    assert taken == sum(episode.length - 1 for episode in EPISODES[:3])
    row = next(row for row in essp.open_catalog(robot / "depth.parquet").rows if is_depth(row.notes))
    found = essp.decode(row, 3, clip=essp.Clip(frames=1, size=(48, 64), pixels="gray16"))
    np.testing.assert_array_equal(found[0, :, :, 0], codes[3])


def test_other_versions_and_cameras_are_refused_with_what_to_do(tmp_path: Path, robot: Path) -> None:
    with pytest.raises(ConfigError, match=f"cameras: {TOP}, observation"):
        built(robot, "c.parquet", BuildOptions(camera="front"))
    with pytest.raises(ConfigError, match=r"--whole: LeRobot stores several episodes in a file"):
        built(robot, "c.parquet", BuildOptions(camera=TOP, whole=True))
    older = tmp_path / "older"
    (older / "meta").mkdir(parents=True)
    (older / "meta/info.json").write_text('{"codebase_version": "v1.6", "features": {}}')
    with pytest.raises(ConfigError, match=r"version v1\.6 of .*; v2\.0, v2\.1 and v3\.0 are read"):
        built(older, "c.parquet")
    with pytest.raises(ConfigError, match=r"is not a LeRobot folder: it has no meta/info\.json"):
        built(tmp_path, "c.parquet")
    with pytest.raises(ConfigError, match=r"--camera: .* is not a LeRobot folder"):
        build(f"file://{robot}/videos", f"file://{tmp_path}/c.parquet", ("file:///",), BuildOptions(camera="x"))


def test_the_example_learns_from_two_cameras_and_resumes(robot: Path, example: RunExample) -> None:
    built(robot, "both.parquet")
    small = ("--size", "32", "--batch-size", "8", "--horizon", "4")
    [first] = example("robot_policy.py", str(robot / "both.parquet"), *CAMERAS, *small, "--epochs", "1")
    assert first.startswith("epoch 1: loss ")
    [second] = example("robot_policy.py", str(robot / "both.parquet"), *CAMERAS, *small, "--epochs", "2")
    assert second.startswith("epoch 2: loss ")


def test_the_example_without_a_catalog_learns_and_resumes(robot: Path, example: RunExample) -> None:
    small = (str(robot), "--batch-size", "8", "--horizon", "4")
    [first] = example("lerobot_policy.py", *small, "--epochs", "1")
    assert first.startswith("epoch 1: loss ")
    [second] = example("lerobot_policy.py", *small, "--epochs", "2")
    assert second.startswith("epoch 2: loss ")

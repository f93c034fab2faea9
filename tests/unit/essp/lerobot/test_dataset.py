"""`essp.lerobot.LeRobotDataset`: items are those of LeRobot, whatever the layout, and however they are asked for.

What LeRobot gives is stated by its rule for timestamps (`by_timestamp`, a plain decode). `tests/lerobot` compares with
LeRobot itself.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

from essp.lerobot import LeRobotDataset, collate
from essp.lerobot import videos as module
from essp_common.errors import BadVideo, ConfigError
from essp_engine.video.planar import PlanarConverter
from essp_engine.video.timed import TimedReader
from tests.harness.refused import refused
from tests.harness.robots import CAMERAS, EPISODES, FPS, by_timestamp, state, write_depth, write_robot

TOP, WRIST = CAMERAS
FRAMES = sum(episode.length for episode in EPISODES)
STEPS: dict[str, list[float]] = {TOP: [-0.2, 0.0], WRIST: [0.1], "action": [-0.3, 0.0, 0.1], "observation.state": [0.0]}


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("robot"))


@pytest.fixture
def copy(robot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(robot, tmp_path / "robot"))


def opened(root: Path, **arguments: Any) -> LeRobotDataset:
    return LeRobotDataset("org/robot", root=root, **arguments)


def change(root: Path, **features: dict[str, Any]) -> None:
    """Change the features that `meta/info.json` declares."""
    path = root / "meta/info.json"
    document = json.loads(path.read_text())
    document["features"] |= features
    path.write_text(json.dumps(document))


def add(root: Path, name: str, values: list[Any], feature: dict[str, Any]) -> None:
    """Add a column to the only table."""
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column(name, pa.array(values)), path)
    change(root, **{name: feature})


def png(values: NDArray[Any]) -> bytes:
    """A picture as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def expected(root: Path, older: bool, index: int) -> dict[str, Any]:
    """The item that LeRobot gives with `STEPS`, from what the harness wrote."""
    firsts = np.cumsum([0, *(episode.length for episode in EPISODES)]).tolist()
    number = max(place for place, first in enumerate(firsts) if first <= index)
    episode, frame = EPISODES[number], index - int(firsts[number])
    before = 0 if older else sum(e.length for e in EPISODES[:number] if e.file == episode.file)

    def clamped(second: float) -> int:
        return min(max(frame + round(second * FPS), 0), episode.length - 1)

    def shown(camera: str) -> torch.Tensor:
        name = f"chunk-000/{camera}/episode_{number:06d}" if older else f"{camera}/chunk-000/file-{episode.file:03d}"
        seconds = [(before + clamped(step)) / FPS for step in STEPS[camera]]
        pictures = by_timestamp(root / f"videos/{name}.mp4", seconds)
        return (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255).squeeze(0)

    places = [clamped(step) for step in STEPS["action"]]
    return {
        TOP: shown(TOP),
        WRIST: shown(WRIST),
        "observation.state": torch.tensor([state(index)]),
        "action": torch.tensor([[1000.0 + firsts[number] + place, float(place)] for place in places]),
        "next.done": torch.tensor(frame == episode.length - 1),
        "frame_index": torch.tensor(frame),
        "episode_index": torch.tensor(number),
        "index": torch.tensor(index),
        "task_index": torch.tensor(["lift", "push"].index(episode.task)),
        "timestamp": torch.tensor(frame / FPS),
        **{
            f"{name}_is_pad": torch.tensor([not 0 <= frame + round(step * FPS) < episode.length for step in steps])
            for name, steps in STEPS.items()
        },
        "task": episode.task,
    }


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The same keys, types, shapes and values."""
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
            assert torch.equal(found[name], value), name
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_items_are_those_of_lerobot(robot: Path, tmp_path: Path, version: str) -> None:
    root = robot if version == "v3.0" else write_robot(tmp_path, gop=5, version=version)
    data = opened(root, delta_timestamps=STEPS)
    assert len(data) == data.num_frames == FRAMES
    for index in (0, 1, 12, 13, 21, 22, 30, FRAMES - 1):
        same(data[index], expected(root, version != "v3.0", index))
    same(data[-1], data[FRAMES - 1])
    with pytest.raises(IndexError):
        data[FRAMES]
    data.close()


def test_what_the_data_set_says_is_that_of_lerobot(robot: Path, tmp_path: Path) -> None:
    for root in (robot, write_robot(tmp_path / "v2.0", version="v2.0"), write_robot(tmp_path / "v2.1", version="v2.1")):
        data = opened(root)
        assert (data.fps, data.num_episodes, data.camera_keys) == (FPS, len(EPISODES), list(CAMERAS))
        assert data.features["action"]["shape"] == (2,)
        assert data.meta.tasks.index.tolist() == ["lift", "push"]
        assert data.meta.tasks.iloc[1].task_index == data.meta.get_task_index("push") == 1
        assert data.meta.stats["action"]["max"].tolist() == [1.0, 2.0]
        assert data.meta.stats["action"]["std"] == pytest.approx([0.1, 0.2])
        assert data.meta.episodes["length"] == [episode.length for episode in EPISODES]
        assert data.meta.episodes[1]["dataset_from_index"] == EPISODES[0].length
        assert (data.meta.total_episodes, data.meta.total_frames, data.meta.total_tasks) == (4, FRAMES, 2)
        assert (root / data.meta.get_video_file_path(3, WRIST)).exists()
        assert (root / data.meta.get_data_file_path(3)).exists()


def test_a_batch_opens_each_file_once_and_decodes_each_frame_once(robot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens: list[str] = []
    shown: list[int] = []
    reader, rgb = TimedReader, PlanarConverter.rgb

    def counted(file: Any) -> Any:
        opens.append(file)
        return reader(file)

    def converted(self: PlanarConverter, frame: Any, target: Any) -> Any:
        shown.append(frame.pts)
        return rgb(self, frame, target)

    monkeypatch.setattr(module, "TimedReader", counted)
    monkeypatch.setattr(PlanarConverter, "rgb", converted)
    data = opened(robot, delta_timestamps={TOP: [-0.1, 0.0]})
    indices = [7, 3, 4, 5, 40, 4, 6]
    items = data.__getitems__(indices)
    assert len(opens) == len(set(opens)) == 4  # two cameras of two files
    assert len(shown) == len({2, 3, 4, 5, 6, 7, 39, 40}) + len({3, 4, 5, 6, 7, 40})
    for index, item in zip(indices, items, strict=True):
        same(item, data[index])
    items[1][WRIST].zero_()  # no item shares memory with another one, or with the data set
    items[1]["action"].zero_()
    same(data[4], items[2])
    assert len(opens) == 4


def test_pictures_may_be_bytes(robot: Path) -> None:
    floats, whole = opened(robot), opened(robot, return_uint8=True)
    assert whole[3][TOP].dtype == torch.uint8
    assert torch.equal(whole[3][TOP].float() / 255, floats[3][TOP])
    twice = whole.__getitems__([3, 3])
    twice[0][TOP].zero_()
    assert torch.equal(twice[1][TOP], whole[3][TOP])


def test_image_transforms_get_the_pictures_of_colour_cameras(robot: Path) -> None:
    data = opened(robot, delta_timestamps={TOP: [-0.1, 0]}, image_transforms=lambda images: images[..., ::2, :])
    assert data[2][TOP].shape == (2, 3, 24, 64)
    assert data[2][WRIST].shape == (3, 24, 64)
    data.clear_image_transforms()
    assert data[2][WRIST].shape == (3, 48, 64)


def test_episodes_are_chosen(robot: Path) -> None:
    data = opened(robot, episodes=[2, 0])
    assert (data.num_episodes, len(data)) == (2, EPISODES[0].length + EPISODES[2].length)
    assert data[EPISODES[0].length]["episode_index"] == 2  # in the order of the files, as in LeRobot
    short = opened(robot, episodes=[0, 1, 3], episode_filter=lambda row: row["length"] < 10)
    assert short.episodes == [1, 3]
    pads = opened(robot, episodes=[2], delta_timestamps={"action": [-0.1, 0]})[0]["action_is_pad"]
    assert pads.tolist() == [True, False]


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ({"episodes": [9]}, "episodes", "unknown"),
        ({"episodes": []}, "episodes", "empty"),
        ({"episodes": "all"}, "episodes", "type"),
        ({"episodes": [1.5]}, "episodes", "type"),
        ({"episode_filter": lambda _: False}, "episodes", "empty"),
        ({"episode_filter": 3}, "episode_filter", "type"),
        ({"image_transforms": "crop"}, "image_transforms", "type"),
        ({"delta_timestamps": [0]}, "delta_timestamps", "type"),
        ({"delta_timestamps": {"actoin": [0]}}, "delta_timestamps.actoin", "unknown"),
        ({"delta_timestamps": {"action": 0}}, "delta_timestamps.action", "type"),
        ({"delta_timestamps": {"action": []}}, "delta_timestamps.action", "empty"),
        ({"delta_timestamps": {"action": [0.05]}}, "delta_timestamps.action", "invalid"),
        ({"delta_timestamps": {"action": [float("nan")]}}, "delta_timestamps.action", "invalid"),
        ({"tolerance_s": 0}, "tolerance_s", "range"),
        ({"tolerance_s": "0.1"}, "tolerance_s", "type"),
        ({"depth_output_unit": "cm"}, "depth_output_unit", "unknown"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(
    robot: Path, arguments: dict[str, Any], field: str, code: str
) -> None:
    with refused(field, code):
        opened(robot, **arguments)


def test_a_folder_is_found_where_lerobot_keeps_it(robot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with refused("root", "not_found"):
        LeRobotDataset("org/robot")
    with pytest.raises(ConfigError, match=r"no meta/info\.json"):
        opened(tmp_path)
    for place in ("hub/datasets--org--robot/snapshots/abc", "org/robot"):
        shutil.copytree(robot, tmp_path / place)
        data = LeRobotDataset("org/robot")
        assert data.root == str(tmp_path / place)
    assert data[0]["task"] == "lift"


def test_frames_off_their_timestamps_are_refused_or_tolerated(copy: Path) -> None:
    path = copy / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    name = f"videos/{TOP}/from_timestamp"
    times = [second + 0.004 for second in table.column(name).to_pylist()]
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(times)), path)
    with pytest.raises(BadVideo, match=rf"episode 1 of {TOP} .*file-000\.mp4 .*nearest is 4 ms off"):
        opened(copy)[14]
    found = opened(copy, tolerance_s=0.005)[14]
    assert found[WRIST].shape == found[TOP].shape
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array([5.0] * len(times))), path)
    with pytest.raises(BadVideo, match=rf"episode 0 of {TOP} has a frame at 5\.000 s, .*ends with its frame at 3\.8"):
        opened(copy)[0]
    (copy / f"videos/{TOP}/chunk-000/file-001.mp4").unlink()
    with pytest.raises(BadVideo, match=r"file-001\.mp4 does not exist"):
        opened(copy)[FRAMES - 1]


def test_texts_stay_texts_and_rows_of_several_lengths_lists(copy: Path) -> None:
    add(copy, "subtask", ["reach" if n % 2 else "grasp" for n in range(FRAMES)], {"dtype": "string", "shape": [1]})
    said = [[{"role": "user", "content": str(n)}] if n % 3 else None for n in range(FRAMES)]
    add(copy, "language_events", said, {"dtype": "language", "shape": [1]})
    add(copy, "contacts", [[1.0] * (n % 3) for n in range(FRAMES)], {"dtype": "float32", "shape": [3]})
    change(copy, gone={"dtype": "float32", "shape": [1]})
    data = opened(copy, delta_timestamps={"contacts": [0, 0.1]})
    item = data[1]
    assert (item["subtask"], item["language_events"]) == ("reach", [{"role": "user", "content": "1"}])
    assert item["contacts"] == [[1.0], [1.0, 1.0]]
    assert item["contacts_is_pad"].tolist() == [False, False]
    assert "gone" not in item
    batch = collate([data[0], data[1]])
    assert batch["subtask"] == ["grasp", "reach"]
    assert batch["contacts"] == [[[], [1.0]], [[1.0], [1.0, 1.0]]]
    assert batch[TOP].shape == (2, 3, 48, 64)


def test_pictures_in_the_tables_are_cameras(copy: Path) -> None:
    colours = [np.full((6, 8, 3), (n, 2 * n, 3 * n), np.uint8) for n in range(FRAMES)]
    cells: list[dict[str, bytes | str | None]] = [{"bytes": png(picture), "path": None} for picture in colours]
    (copy / "loose.png").write_bytes(png(colours[5]))
    cells[5] = {"bytes": None, "path": "loose.png"}
    add(copy, "front", cells, {"dtype": "image", "shape": [6, 8, 3]})
    depths = [{"bytes": png(np.full((6, 8), 300 * n, np.uint16)), "path": None} for n in range(FRAMES)]
    add(copy, "far", depths, {"dtype": "image", "shape": [6, 8, 1], "info": {"is_depth_map": True}})
    data = opened(copy, delta_timestamps={"front": [0, 0.1]})
    item = data[4]
    assert torch.equal(item["front"] * 255, torch.from_numpy(np.stack(colours[4:6])).permute(0, 3, 1, 2).float())
    assert (item["far"].dtype, item["far"].shape, item["far"].unique().tolist()) == (torch.uint16, (1, 6, 8), [1200])
    assert data.camera_keys == [*CAMERAS, "front", "far"]


def test_of_many_files_with_pictures_only_some_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_robot(tmp_path, version="v2.1")
    monkeypatch.setattr("essp.lerobot.pictures._OPEN_FILES", 2)
    change(root, front={"dtype": "image", "shape": [6, 8, 3]})
    for number, path in enumerate(files := sorted((root / "data").rglob("*.parquet"))):
        table = pq.read_table(path)
        cell = {"bytes": png(np.full((6, 8, 3), 50 * number, np.uint8)), "path": None}
        pq.write_table(table.append_column("front", pa.array([cell] * len(table))), path)
    data = opened(root)
    firsts = np.cumsum([0, *(episode.length for episode in EPISODES[:-1])]).tolist()
    for number, first in [*enumerate(firsts), *enumerate(firsts)]:
        assert (data[first]["front"] * 255).round().unique().tolist() == [50 * number]
        names = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        assert len(names & {str(path) for path in files}) <= 2
    assert len(files) > 2


@pytest.mark.parametrize("said", [{}, {"video.depth_min": 0.5, "video.depth_max": 4.595, "video.use_log": False}])
def test_distances_keep_their_bits(tmp_path: Path, said: dict[str, Any]) -> None:
    root = write_robot(tmp_path)
    code = torch.from_numpy(write_depth(root, WRIST, **said)[12]).int()
    first = opened(root)[12][WRIST]
    assert (first.dtype, first.shape) == (torch.uint16, (1, 48, 64))
    assert torch.equal(first[0].int(), code + 500 if said else code)
    metres = opened(root, depth_output_unit="m")[12][WRIST]
    assert (metres.dtype, metres.shape) == (torch.float32, (1, 48, 64))
    if said:
        torch.testing.assert_close(metres[0], (code + 500) / 1000)


def test_workers_that_were_forked_open_their_own_files(robot: Path) -> None:
    data = opened(robot)
    items = [data[index] for index in range(0, FRAMES, 5)]  # the files are open when the fork is made
    loader = DataLoader(data, batch_size=4, num_workers=2, sampler=range(0, FRAMES, 5), multiprocessing_context="fork")
    for place, batch in enumerate(loader):
        wanted = collate(items[4 * place : 4 * place + 4])
        assert all(torch.equal(batch[name], wanted[name]) for name in CAMERAS)
        assert batch["task"] == wanted["task"]


@pytest.mark.lane("promises")
def test_workers_that_were_spawned_have_the_same_items(robot: Path) -> None:
    data = opened(robot, delta_timestamps=STEPS)
    loader = DataLoader(data, batch_size=7, num_workers=1, multiprocessing_context="spawn")
    for place, batch in enumerate(loader):
        same(batch, collate(data[7 * place : 7 * place + 7]))


WITHOUT_PANDAS = """
import importlib.util, sys
from essp.lerobot import LeRobotDataset
for arguments in ({}, {"episodes": [2, 0], "delta_timestamps": {"action": [0.0, 0.1]}}):
    data = LeRobotDataset("org/robot", root=sys.argv[1], **arguments)
    assert len(data.__getitems__([0, 1, len(data) - 1])) == 3
assert importlib.util.find_spec("pandas") and "pandas" not in sys.modules
"""


@pytest.mark.processes
def test_the_first_batch_of_a_process_does_not_wait_for_pandas(robot: Path) -> None:
    """pyarrow imports it for conversions, wherever it is installed: a third of a second."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS, str(robot)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

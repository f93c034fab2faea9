"""A tiny data set in the form of LeRobot v3, written from its description: two cameras, several episodes a file.

Or in the form of v2.0 or v2.1: an episode a file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from essp_engine.video.synthetic import Encoding, numbered, write_video

FPS = 10
CAMERAS = ("observation.images.top", "observation.images.wrist")


@dataclass(frozen=True)
class Episode:
    """What was written of one."""

    length: int
    task: str
    file: int
    """The number of its MP4, of all cameras."""


EPISODES = (Episode(13, "lift", 0), Episode(9, "push", 0), Episode(17, "lift", 0), Episode(8, "push", 1))


def state(index: int) -> list[float]:
    """What the robot's state was at a frame of the whole set."""
    return [index / 2, -index]


def write_robot(root: Path, codec: str = "h264", gop: int = 6, version: str = "v3.0") -> Path:
    """The folder. Frames carry their number in their file as a bar code."""
    numbers = {"dtype": "float32", "shape": [2], "names": None}
    single = {"dtype": "int64", "shape": [1], "names": None}
    video = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "fps": FPS,
        "splits": {"train": "0:3", "val": "3:4"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            **dict.fromkeys(CAMERAS, video),
            "observation.state": numbers,
            "action": numbers,
            "next.done": {"dtype": "bool", "shape": [1], "names": None},
            **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), single),
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        },
    }
    older = version.startswith("v2")
    if older:
        info |= {
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
            "chunks_size": 1000,
        }
    _write(root / "meta/info.json", json.dumps(info))
    lengths = [sum(episode.length for episode in EPISODES if episode.file == file) for file in (0, 1)]
    for file, frames in enumerate([episode.length for episode in EPISODES] if older else lengths):
        for seed, camera in enumerate(CAMERAS):
            name = f"chunk-000/{camera}/episode_{file:06d}" if older else f"{camera}/chunk-000/file-{file:03d}"
            path = root / f"videos/{name}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_video(path, numbered(frames, 64, 48, seed), Encoding(codec, fps=FPS, gop=gop))
    _tables(root, version)
    return root


def write_depth(root: Path, camera: str, **said: Any) -> list[NDArray[np.uint16]]:
    """Make a camera of a robot a depth camera of 12 bits. Returns its frames, `(48, 64)` codes.

    `said`: what the data set says of its codes.
    """
    count = sum(episode.length for episode in EPISODES)
    codes = [np.add.outer(np.arange(48), 64 * np.arange(64)).astype(np.uint16) % 4096 // 2 + n for n in range(count)]
    first = sum(episode.length for episode in EPISODES if episode.file == 0)
    for file, frames in enumerate((codes[:first], codes[first:])):
        path = root / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"
        with av.open(str(path), "w", format="matroska") as container:
            stream = container.add_stream("ffv1", rate=FPS, width=64, height=48, pix_fmt="gray12le")
            for values in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(values, "gray12le")))
            container.mux(stream.encode(None))
    info = root / "meta/info.json"
    document = json.loads(info.read_text())
    document["features"][camera] |= {"shape": [48, 64, 1], "info": {"video.is_depth_map": True, **said}}
    info.write_text(json.dumps(document))
    return codes


def _tables(root: Path, version: str) -> None:
    rows: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    begins_s = {0: 0.0, 1: 0.0}
    for number, episode in enumerate(EPISODES):
        first = len(rows)
        for frame in range(episode.length):
            index = first + frame
            rows.append(
                {
                    "observation.state": state(index),
                    "action": [1000.0 + index, float(frame)],
                    "next.done": frame == episode.length - 1,
                    "timestamp": frame / FPS,
                    "frame_index": frame,
                    "episode_index": number,
                    "index": index,
                    "task_index": sorted({each.task for each in EPISODES}).index(episode.task),
                }
            )
        begin_s = begins_s[episode.file]
        begins_s[episode.file] += episode.length / FPS
        places = {"chunk_index": 0, "file_index": episode.file}
        times = {"from_timestamp": begin_s, "to_timestamp": begins_s[episode.file]}
        episodes.append(
            {
                "episode_index": number,
                "tasks": [episode.task],
                "length": episode.length,
                "dataset_from_index": first,
                "dataset_to_index": len(rows),
                "data/chunk_index": 0,
                "data/file_index": 0,
                **{f"videos/{camera}/{name}": v for camera in CAMERAS for name, v in {**places, **times}.items()},
                "stats/action/mean": [0.0, 0.0],
            }
        )
    pair = pa.list_(pa.float32(), 2)
    kinds = {"observation.state": pair, "action": pair, "timestamp": pa.float32()}
    table = pa.table({name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]})
    tasks = sorted({episode.task for episode in EPISODES})
    stats = {"action": {"min": [0.0, 0.0], "max": [1.0, 2.0], "mean": [0.5, 1.0], "std": [0.1, 0.2], "count": [9]}}
    if version.startswith("v2"):
        lines = [{name: episode[name] for name in ("episode_index", "tasks", "length")} for episode in episodes]
        _write(root / "meta/episodes.jsonl", "\n".join(map(json.dumps, lines)))
        _write(
            root / "meta/tasks.jsonl", "\n".join(json.dumps({"task_index": n, "task": t}) for n, t in enumerate(tasks))
        )
        for number, row in enumerate(episodes):
            path = root / f"data/chunk-000/episode_{number:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.slice(row["dataset_from_index"], row["length"]), path)
        if version == "v2.0":
            _write(root / "meta/stats.json", json.dumps(stats))
        else:
            of = [{"episode_index": number, "stats": stats} for number in range(len(episodes))]
            _write(root / "meta/episodes_stats.jsonl", "\n".join(map(json.dumps, of)))
        return
    _write(root / "meta/stats.json", json.dumps(stats))
    pq.write_table(pa.table({"task_index": range(len(tasks)), "task": tasks}), root / "meta/tasks.parquet")
    for key, found in (("data", table), ("meta/episodes", pa.Table.from_pylist(episodes))):
        path = root / key / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(found, path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def by_timestamp(path: Path, seconds: list[float]) -> NDArray[np.uint8]:
    """`(T, H, W, 3)`: what LeRobot shows at these times: of all frames of the file, by a plain decode, the nearest."""
    with av.open(str(path)) as container:
        frames = [(float(frame.time or 0), frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    shown = np.array([time for time, _ in frames])
    nearest = [int(np.abs(shown - second).argmin()) for second in seconds]
    assert all(abs(shown[place] - second) < 1e-4 for place, second in zip(nearest, seconds, strict=True))
    return np.stack([frames[place][1] for place in nearest])

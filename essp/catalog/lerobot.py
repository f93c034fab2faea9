"""LeRobot v3 folders: episodes of a robot, several of them in each MP4, with states and actions for each frame.

    meta/info.json                                  rate, features, splits, and where files are
    meta/episodes/chunk-NNN/file-NNN.parquet        of each episode: tasks, rows of data, file and time of each camera
    data/chunk-NNN/file-NNN.parquet                 a row a frame: state, action, timestamp, ...
    videos/CAMERA/chunk-NNN/file-NNN.mp4            episodes one after the other

A row of the catalog is an episode as one camera saw it: the frames of the MP4 from the one at `from_timestamp` on, as
many as the episode has. Frame k has to be shown within 0.1 ms of `from_timestamp + k / fps`, the tolerance of LeRobot;
a video where that does not hold is a row with an error. Class and labels are the tasks, the group is the episode, and
each feature that holds numbers is a series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp.catalog.entry import Entry, Segment
from essp.catalog.found import Found
from essp_common.errors import ConfigError, NotFound
from essp_common.objects import tables
from essp_common.planning.splits import canonical_split

_INFO = "meta/info.json"
_EPISODES = "meta/episodes/"
_VERSION = "v3."
_NO_NUMBERS = frozenset({"video", "image", "string", "language", "audio"})
_NEEDED = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")


def is_lerobot(found: Found) -> str:
    if found.given or _INFO not in found.others:
        return ""
    info = found.json(_INFO)
    if not isinstance(info, dict) or "codebase_version" not in info:
        return ""
    return f"{_INFO} of version {info['codebase_version']}; cameras: {', '.join(_cameras(info)) or 'none'}"


def lerobot(found: Found) -> Iterator[Entry]:
    """Each episode as each camera saw it, or as `found.camera` did. Raises `ConfigError` for another version."""
    info = _info(found)
    cameras = _cameras(info)
    if found.camera and found.camera not in cameras:
        raise ConfigError(f"--camera {found.camera}: there is none; cameras: {', '.join(cameras) or 'none'}")
    cameras = [found.camera] if found.camera else cameras
    episodes = _episodes(found, cameras)
    splits = _splits(info)
    files = {item.key: item for item in found.videos}
    for episode, series in _with_series(found, info, episodes):
        number, length = int(episode["episode_index"]), int(episode["length"])
        tasks = tuple(str(task) for task in episode.get("tasks") or ())
        name = f"episode_{number:06d}"
        split = next((split for split, places in splits if number in places), "train")
        for camera in cameras:
            key = _place(found, info, "video_path", episode, f"videos/{camera}/", video_key=camera)
            entry_id = name if found.camera else f"{name}/{camera}"
            item = files.get(key)
            if item is None:
                yield Entry(entry_id, found.store.uri(key), tasks[0] if tasks else "", split, error="vanished: no file")
                continue
            yield Entry(
                entry_id,
                found.store.uri(key),
                tasks[0] if tasks else "",
                split,
                item.size_bytes,
                item.etag,
                Segment(float(episode[f"videos/{camera}/from_timestamp"]), None, "s", length, float(info["fps"])),
                group=name,
                labels=tasks if len(tasks) > 1 else (),
                series=series,
                meta={"episode_index": number, "camera": camera, "robot_type": info.get("robot_type")},
            )


def _info(found: Found) -> dict[str, Any]:
    try:
        info = found.json(_INFO)
    except NotFound as error:
        raise ConfigError(f"{found.uri} is no folder of LeRobot: it has no {_INFO}") from error
    version = str(info.get("codebase_version", "none"))
    if not version.startswith(_VERSION):
        raise ConfigError(
            f"{found.uri} is of LeRobot's version {version}, not v3.0; convert it first: python -m "
            "lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    missing = [name for name in ("fps", "features", "data_path", "video_path") if not info.get(name)]
    if missing:
        raise ConfigError(f"{found.uri}/{_INFO} says nothing of {', '.join(missing)}")
    return dict(info)


def _cameras(info: Mapping[str, Any]) -> list[str]:
    features = info.get("features", {})
    return sorted(name for name, feature in features.items() if feature.get("dtype") == "video")


def _splits(info: Mapping[str, Any]) -> list[tuple[str, range]]:
    """Split -> its episodes; narrow ones first, since they may lie within others."""
    found = []
    for name, text in (info.get("splits") or {}).items():
        begin, _, end = str(text).partition(":")
        if begin.isdigit() and end.isdigit():
            found.append((canonical_split(name), range(int(begin), int(end))))
    return sorted(found, key=lambda item: len(item[1]))


def _episodes(found: Found, cameras: Sequence[str]) -> list[dict[str, Any]]:
    """What is known of each episode, but for statistics."""
    columns = [*_NEEDED, "tasks"]
    for camera in cameras:
        columns += [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
    rows: list[dict[str, Any]] = []
    for key in sorted(found.others):
        if key.startswith(_EPISODES) and key.endswith(".parquet"):
            rows += _table(found, key, columns, ("tasks",)).to_pylist()
    if not rows:
        raise ConfigError(f"{found.uri}: {_EPISODES} holds no episode")
    return sorted(rows, key=lambda row: int(row["episode_index"]))


def _with_series(
    found: Found, info: Mapping[str, Any], episodes: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
    """Each episode with its values; a file of them is read once."""
    names = [name for name, feature in info["features"].items() if feature.get("dtype") not in _NO_NUMBERS]
    by_file: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for episode in episodes:
        by_file[_place(found, info, "data_path", episode, "data/")].append(episode)
    for key, held in by_file.items():
        table = _table(found, key, ["index", *(name for name in names if name != "index")], names)
        index = np.asarray(table.column("index").to_numpy())
        columns = {name: _values(table.column(name)) for name in names if name in table.column_names}
        for episode in held:
            wanted = (index >= int(episode["dataset_from_index"])) & (index < int(episode["dataset_to_index"]))
            yield episode, {name: values[wanted] for name, values in columns.items() if values is not None}


def _values(column: Any) -> NDArray[Any] | None:
    """`(frames, ...)` of a column of numbers, or lists of them of one length; None for anything else."""
    array = column.combine_chunks()
    shape = [len(array)]
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        inner = array.flatten()
        if not len(array) or len(inner) % len(array):
            return None
        shape.append(len(inner) // len(array))
        array = inner
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        return None
    flat = np.asarray(array.to_numpy(zero_copy_only=False))
    return flat.reshape(shape) if int(np.prod(shape)) == len(flat) and flat.dtype != object else None


def _table(found: Found, key: str, columns: Sequence[str], optional: Sequence[str]) -> Any:
    """These columns of a Parquet file. Raises `ConfigError` for one that lacks any that is not optional."""
    uri = found.store.uri(key)
    try:
        file = tables.opened(pa.BufferReader(found.store.get(key)))
        there = set(file.schema_arrow.names)
        if missing := [name for name in columns if name not in there and name not in optional]:
            raise ConfigError(f"{uri} has no column {', '.join(missing)}; is it LeRobot v3?")
        table = tables.read(file, [name for name in columns if name in there])
        table.validate(full=True)
        return table
    except (NotFound, *tables.UNREADABLE) as error:
        raise ConfigError(f"{uri} cannot be read: {error}") from error


def _place(
    found: Found, info: Mapping[str, Any], template: str, episode: Mapping[str, Any], of: str, **more: str
) -> str:
    """The key of a file of an episode."""
    chunk, file = int(episode[f"{of}chunk_index"]), int(episode[f"{of}file_index"])
    try:
        return str(info[template]).format(chunk_index=chunk, file_index=file, **more)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"{found.uri}/{_INFO}: {template} {info[template]!r} makes no path ({error})") from error

"""What a LeRobot folder contains, in the layouts v3.0, v2.1 and v2.0: its cameras, episodes, tasks and statistics.

    v3.0   meta/info.json                                rate, features, splits, and paths of the files
           meta/episodes/chunk-NNN/file-NNN.parquet      for each episode: tasks, rows, file and time of a camera
           meta/tasks.parquet, meta/stats.json
           data/chunk-NNN/file-NNN.parquet               a row a frame, many episodes in a file
           videos/CAMERA/chunk-NNN/file-NNN.mp4          episodes one after the other
    v2.x   meta/info.json
           meta/episodes.jsonl, meta/tasks.jsonl, meta/stats.json (v2.0), meta/episodes_stats.jsonl (v2.1)
           data/chunk-NNN/episode_NNNNNN.parquet         an episode a file
           videos/chunk-NNN/CAMERA/episode_NNNNNN.mp4    an episode a file

Episodes are described alike, whatever the layout: a table with the columns of v3.0, in which an episode of v2.x has a
file of its own that begins at 0 s. What is damaged, or not of such a layout, is a `ConfigError` that names the file.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from essp_common.catalog.split_names import canonical_split
from essp_common.errors import ConfigError, NotFound
from essp_common.objects import tables
from essp_common.objects.documents import lines_of, read_json
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems

INFO = "meta/info.json"
TIME = "/from_timestamp"
NO_NUMBERS = frozenset({"video", "image", "string", "language", "audio"})
"""The types of features that are not numbers."""
_EPISODES = "meta/episodes/"
_OLD_EPISODES, _OLD_TASKS, _OLD_STATS = "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl"
_TASKS, _STATS = "meta/tasks.parquet", "meta/stats.json"
_VERSION = re.compile(r"v?(2\.[01]|3\.[0-9]+)(\.[0-9]+)?")
_EPISODES_OF_SPLIT = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_NEEDED = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
_UNNAMED_INDEX = "__index_level_0__"
"""What pandas calls the index of a table without a name."""
_EXTREMES = {"min": np.minimum, "max": np.maximum}


class Info(BaseModel):
    """The fields of `meta/info.json`; others are kept."""

    model_config = ConfigDict(extra="allow")

    codebase_version: str = ""
    fps: float = Field(gt=0, allow_inf_nan=False)
    features: dict[str, dict[str, Any]] = Field(min_length=1)
    data_path: str
    video_path: str | None = None
    splits: dict[str, str] | None = None
    robot_type: str | None = None
    chunks_size: int = Field(default=1000, ge=1)

    @property
    def cameras(self) -> list[str]:
        """The names of the features that are videos."""
        return sorted(name for name, feature in self.features.items() if feature.get("dtype") == "video")

    @property
    def picture_cameras(self) -> list[str]:
        """The names of the features that are single images in the tables."""
        return sorted(name for name, feature in self.features.items() if feature.get("dtype") == "image")

    @property
    def depth_cameras(self) -> list[str]:
        """The names of the cameras that contain distances instead of colours."""
        return [name for name in (*self.cameras, *self.picture_cameras) if is_depth(self.features[name])]


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Whether it says `is_depth_map`: in `info`, `video_info`, or itself; some releases write `video.is_depth_map`."""
    said = dict(feature)
    for place in ("info", "video_info"):
        inside = feature.get(place)
        said |= inside if isinstance(inside, dict) else {}
    return any(bool(value) for name, value in said.items() if name.rpartition(".")[2] == "is_depth_map")


class LeRobotFolder:
    """A folder of one data set. Each of its files is read when it is asked for."""

    def __init__(self, store: ObjectStore, keys: Iterable[str] | None = None) -> None:
        """`store`: the store of the folder. `keys`: its files, if they have been listed.

        Raises `ConfigError` if it is not a LeRobot folder, or of a version that is not read.
        """
        self.store = store
        self.uri = store.uri("-").removesuffix("/-")
        self._listed = None if keys is None else sorted(keys)
        try:
            self.info = self._info(self._text(INFO))
        except NotFound as error:
            raise ConfigError(f"{self.uri} is not a LeRobot folder: it has no {INFO}", code="not_found") from error

    @property
    def an_episode_a_file(self) -> bool:
        """Whether it is of the layout v2.0 or v2.1."""
        return self.info.codebase_version.lstrip("v").startswith("2.")

    def episodes(self, cameras: Sequence[str], whole: bool = False) -> pa.Table:
        """The episodes by their number, with the columns of v3.0: those that a reader of these cameras needs.

        `whole`: all that the files have, without statistics.
        """
        needed = [*_NEEDED]
        for camera in cameras:
            needed += [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index")]
            needed.append(f"videos/{camera}{TIME}")
        found = self._old_episodes(cameras) if self.an_episode_a_file else self._new_episodes(needed, whole)
        if not len(found):
            raise ConfigError(f"{self.uri}: meta/episodes contains no episode", code="empty")
        return found.sort_by("episode_index")

    def tasks(self) -> dict[int, str]:
        """The tasks by their number; empty if the folder has no list of them."""
        try:
            if self.an_episode_a_file:
                lines = self._lines(_OLD_TASKS)
                return {int(line["task_index"]): str(line["task"]) for line in lines}
            table = self.table(_TASKS, ["task_index"], (), whole=True)
            name = next(n for n in ("task", _UNNAMED_INDEX, *table.column_names) if n in table.column_names)
            names = table.column(name).to_pylist()
            return {int(n): str(task) for n, task in zip(table.column("task_index").to_pylist(), names, strict=True)}
        except NotFound:
            return {}
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.uri}: the list of tasks cannot be read ({error!r})", code="unreadable") from error

    def stats(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Feature -> `min`, `max`, `mean`, `std`, `count`, ... as arrays; empty if the folder has none."""
        try:
            return _arrays(read_json(self._text(_STATS)))
        except NotFound:
            pass
        except ValueError as error:
            raise ConfigError(f"{self.uri}/{_STATS} cannot be read: {error}", code="unreadable") from error
        try:
            return _together([_arrays(line["stats"]) for line in self._lines(_OLD_STATS)])
        except NotFound:
            return {}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.uri}/{_OLD_STATS} cannot be read ({error!r})", code="unreadable") from error

    def splits(self) -> list[tuple[str, range]]:
        """Split -> its episodes; narrow ranges first, since they may be inside others. Raises `ConfigError`."""
        found = []
        for name, text in (self.info.splits or {}).items():
            match = _EPISODES_OF_SPLIT.fullmatch(text.strip())
            if match is None:
                raise ConfigError(f"{INFO}: splits: {name}: {text!r:.80} is not a range of episodes, such as 0:50")
            found.append((canonical_split(name), range(int(match[1]), int(match[2]))))
        return sorted(found, key=lambda item: len(item[1]))

    def data_key(self, episode: Mapping[str, Any]) -> str:
        """The key of the file with the rows of an episode."""
        return self._place("data_path", self.info.data_path, episode, "data/")

    def video_key(self, episode: Mapping[str, Any], camera: str) -> str:
        """The key of the video with an episode as seen by a camera."""
        return self._place("video_path", self.info.video_path or "", episode, f"videos/{camera}/", video_key=camera)

    def table(self, key: str, columns: Sequence[str], optional: Sequence[str], whole: bool = False) -> pa.Table:
        """These columns of a Parquet file. Those that are not optional must be numbers without gaps.

        `whole`: and all others that are not statistics. Raises `ConfigError` if the file has no such columns,
        `NotFound` if there is no such file.
        """
        uri, path = self.store.uri(key), self.store.local_path(key)
        data = pa.BufferReader(self.store.get(key)) if path is None else path
        try:
            with tables.opened(data) as file:
                there = list(file.schema_arrow.names)
                if missing := [name for name in columns if name not in there and name not in optional]:
                    raise ConfigError(f"{uri} has no column {', '.join(missing)}; is it of the LeRobot format?")
                others = [name for name in there if whole and not name.startswith("stats/") and name not in columns]
                table = tables.read(file, [*(name for name in columns if name in there), *others])
            table.validate(full=True)
            for place, name in enumerate(table.column_names):
                if name not in optional and name not in others:
                    table = table.set_column(place, name, _numbers(name, table.column(name)))
            return table
        except tables.UNREADABLE as error:
            raise ConfigError(f"{uri} cannot be read: {error}") from error

    def keys(self, folder: str) -> Iterator[str]:
        """The files below a folder, in order of their names."""
        if self._listed is None:
            yield from (found.key for found in self.store.list(folder))
        else:
            yield from (key for key in self._listed if key.startswith(folder))

    def _new_episodes(self, needed: Sequence[str], whole: bool) -> pa.Table:
        parts = []
        for key in self.keys(_EPISODES):
            if not key.endswith(".parquet"):
                continue
            try:
                part = self.table(key, [*needed, "tasks"], ("tasks",), whole=whole)
            except NotFound as error:
                raise ConfigError(f"{self.store.uri(key)} cannot be read: {error}") from error
            if "tasks" in part.column_names and not pa.types.is_nested(kind := part.column("tasks").type):
                raise ConfigError(f"{self.store.uri(key)}: column tasks is {kind}, not lists of texts")
            parts.append(part)
        return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})

    def _old_episodes(self, cameras: Sequence[str]) -> pa.Table:
        try:
            lines = list(self._lines(_OLD_EPISODES))
            numbers = [int(line["episode_index"]) for line in lines]
            lengths = {number: int(line["length"]) for number, line in zip(numbers, lines, strict=True)}
            tasks = [[str(task) for task in line.get("tasks") or ()] for line in lines]
        except NotFound as error:
            raise ConfigError(f"{self.uri}: {_OLD_EPISODES} is missing", code="not_found") from error
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.uri}/{_OLD_EPISODES} cannot be read ({error!r})", code="unreadable") from error
        if any(length < 0 for length in lengths.values()) or len(lengths) != len(lines):
            raise ConfigError(f"{self.uri}/{_OLD_EPISODES}: an episode has a negative length, or is listed twice")
        ordered = sorted(numbers)
        ends = dict(zip(ordered, np.cumsum([lengths[number] for number in ordered]).tolist(), strict=True))
        of_video = {"chunk_index": [number // self.info.chunks_size for number in numbers], "file_index": numbers}
        columns: dict[str, Any] = {
            "episode_index": numbers,
            "tasks": pa.array(tasks, pa.list_(pa.string())),
            "length": [lengths[number] for number in numbers],
            "dataset_from_index": [ends[number] - lengths[number] for number in numbers],
            "dataset_to_index": [ends[number] for number in numbers],
            **{f"data/{name}": values for name, values in of_video.items()},
        }
        for camera in cameras:
            columns |= {f"videos/{camera}/{name}": values for name, values in of_video.items()}
            columns[f"videos/{camera}{TIME}"] = pa.array([0.0] * len(numbers), pa.float64())
            columns[f"videos/{camera}/to_timestamp"] = [lengths[number] / self.info.fps for number in numbers]
        return pa.table(columns)

    def _info(self, text: str) -> Info:
        try:
            document = read_json(text)
        except ValueError as error:
            raise ConfigError(f"{self.store.uri(INFO)} is not JSON: {error}", code="unreadable") from error
        version = str(document.get("codebase_version", "none")) if isinstance(document, dict) else "none"
        if not _VERSION.fullmatch(version):
            raise ConfigError(
                f"{self.uri} has version {version} of the LeRobot format; v2.0, v2.1 and v3.0 are read; convert it "
                "with the scripts of lerobot.datasets",
                code="unsupported",
            )
        try:
            return Info.model_validate(document)
        except ValidationError as error:
            raise ConfigError(f"{self.uri}/{INFO}: {'; '.join(map(str, problems(error, Info)))}") from error

    def _place(self, what: str, template: str, episode: Mapping[str, Any], of: str, **more: str) -> str:
        """The key of a file of an episode. Templates of v2.x name the episode, those of v3.0 the chunk and the file."""
        chunk, file = episode[f"{of}chunk_index"], episode[f"{of}file_index"]
        old = {"episode_chunk": chunk, "episode_index": episode["episode_index"]}
        try:
            return template.format(chunk_index=chunk, file_index=file, **old, **more)
        except (LookupError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.uri}/{INFO}: {what} {template!r} does not result in a path ({error})") from error

    def _text(self, key: str) -> str:
        try:
            return self.store.get(key).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.store.uri(key)} is not UTF-8 text (byte {error.start})") from error

    def _lines(self, key: str) -> Iterator[dict[str, Any]]:
        """The objects of a file of JSON lines."""
        for number, line in enumerate(lines_of(self._text(key)), 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{self.store.uri(key)}, line {number}: not JSON ({error})") from error
            if not isinstance(found, dict):
                raise ConfigError(f"{self.store.uri(key)}, line {number}: not an object")
            yield found

    @cached_property
    def data_keys(self) -> tuple[str, ...]:
        """The files with the rows of all episodes, in order."""
        return tuple(key for key in self.keys("data/") if key.endswith(".parquet"))


def values_of(column: Any) -> NDArray[Any] | str:
    """`(frames, ...)` from a column of numbers, or of lists of numbers of equal length; otherwise, what is wrong."""
    array = column.combine_chunks()
    shape = [len(array)]
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        lengths = pc.list_value_length(array).unique()
        if len(lengths) != 1 or not lengths[0].is_valid:
            return "have several lengths, or no value in some rows"
        shape.append(lengths[0].as_py())
        array = array.flatten()
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        return "are not numbers"
    flat = tables.to_numpy(array)
    if int(np.prod(shape)) != len(flat) or flat.dtype == object:
        return "have no value in some rows"
    return flat.reshape(shape)


def texts_of(column: Any) -> list[list[str]] | None:
    """The texts of each row, from a column of texts, or of lists of LeRobot's annotations, whose text is `content`.

    None for any other column.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [[text] if text else [] for text in column.to_pylist()]
    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if inner is None or not pa.types.is_struct(inner) or inner.get_field_index("content") < 0:
        return None
    return [[str(said["content"]) for said in row or () if said and said["content"]] for row in column.to_pylist()]


def _numbers(name: str, column: Any) -> Any:
    """Times as float64, all else as int64. Raises one of `tables.UNREADABLE` for any other value."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"column {name} is {kind}, not numbers")
    try:
        numbers = column.cast(pa.float64() if name.endswith(TIME) else pa.int64())
    except pa.ArrowInvalid as error:  # a fraction or NaN as int64
        raise ValueError(f"column {name}: {error}") from error
    if numbers.null_count or not pc.all(pc.is_finite(numbers)).as_py():
        raise ValueError(f"column {name} has no number in some rows")
    return numbers


def _arrays(found: Any) -> dict[str, dict[str, NDArray[Any]]]:
    """Feature -> statistic -> array of at least one dimension."""
    if not isinstance(found, dict):
        return {}
    return {
        feature: {name: np.atleast_1d(np.array(value)) for name, value in of.items()}
        for feature, of in found.items()
        if isinstance(of, dict)
    }


def _together(parts: Sequence[Mapping[str, Mapping[str, NDArray[Any]]]]) -> dict[str, dict[str, NDArray[Any]]]:
    """The statistics of all episodes from those of each: extremes of extremes, and the pooled mean and deviation."""
    of: defaultdict[str, list[Mapping[str, NDArray[Any]]]] = defaultdict(list)
    for part in parts:
        for feature, values in part.items():
            of[feature].append(values)
    return {feature: _pooled(values) for feature, values in of.items()}


def _pooled(values: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    found = {
        name: function.reduce([value[name] for value in values])
        for name, function in _EXTREMES.items()
        if all(name in value for value in values)
    }
    if not all({"mean", "std", "count"} <= value.keys() for value in values):
        return found
    counts = np.array([float(value["count"].reshape(-1)[0]) for value in values])
    total = math.fsum(counts)
    shares = (counts / total).reshape(-1, *[1] * values[0]["mean"].ndim)
    means = np.stack([value["mean"] for value in values]).astype(np.float64)
    squares = np.stack([value["std"] for value in values]).astype(np.float64) ** 2
    mean = (shares * means).sum(0)
    deviation = np.sqrt((shares * (squares + (means - mean) ** 2)).sum(0))
    return found | {"mean": mean, "std": deviation, "count": np.array([int(total)])}

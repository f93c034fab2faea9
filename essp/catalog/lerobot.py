"""LeRobot v3 folders: episodes of a robot, several in each MP4, with states and actions for each frame.

    meta/info.json                                  rate, features, splits, and paths of the files
    meta/episodes/chunk-NNN/file-NNN.parquet        for each episode: tasks, rows of data, file and time of each camera
    data/chunk-NNN/file-NNN.parquet                 a row a frame: state, action, timestamp, ...
    videos/CAMERA/chunk-NNN/file-NNN.mp4            episodes one after the other

An episode is an event, and each camera is a view of it. A row of the catalog is an episode from one camera: the frames
of the MP4 from `from_timestamp`, as many as the episode has. Frame k must be shown within `tolerance_s` of
`from_timestamp + k / fps`; the default is LeRobot's 0.1 ms. A video that violates this is a row with an error. Class
and labels are the tasks, the group is the episode, and each numeric feature is a series. `Found.notes` lists the
features that are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from essp.catalog.entry import Entry, Segment
from essp.catalog.found import Found, few
from essp.catalog.layout import LISTS, Layout
from essp_common.catalog.splits import canonical_split
from essp_common.catalog.targets import Targets, pack
from essp_common.errors import ConfigError, NotFound
from essp_common.objects import tables
from essp_common.validation import problems

_INFO = "meta/info.json"
_EPISODES = "meta/episodes/"
_EPISODES_OF_SPLIT = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_VERSION = "v3."
_TIME = "/from_timestamp"
_NO_NUMBERS = frozenset({"video", "image", "string", "language", "audio"})
_TO_VIDEOS = "convert them to videos first: lerobot-edit-dataset --operation.type convert_image_to_video"
_DEPTH = f"a depth camera (is_depth_map in {_INFO}), which ESSP does not read: distances need more bits than clips have"
_NEEDED = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")


class Info(BaseModel):
    """The required fields of `meta/info.json`."""

    fps: float = Field(gt=0, allow_inf_nan=False)
    features: dict[str, dict[str, Any]] = Field(min_length=1)
    data_path: str
    video_path: str | None = None
    splits: dict[str, str] | None = None
    robot_type: str | None = None

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
        """The names of the videos that contain distances instead of colours."""
        return [name for name in self.cameras if _is_depth(self.features[name])]


def _is_depth(feature: Mapping[str, Any]) -> bool:
    """`is_depth_map` is in `info`, or in the feature itself, in some releases as `video.is_depth_map`."""
    info = feature.get("info")
    said = {**feature, **(info if isinstance(info, dict) else {})}
    return any(bool(value) for name, value in said.items() if name.rpartition(".")[2] == "is_depth_map")


def is_lerobot(found: Found) -> str:
    if found.given or _INFO not in found.others:
        return ""
    document = found.json(_INFO)
    if not isinstance(document, dict) or "codebase_version" not in document:
        return ""
    return f"{_INFO} of version {document['codebase_version']}; cameras: {_shown_cameras(document)}"


def _shown_cameras(document: Any) -> str:
    try:
        info = Info.model_validate(document)
        return ", ".join([*info.cameras, *(f"{name} (pictures)" for name in info.picture_cameras)]) or "none"
    except ValidationError:
        return "not known"  # reading the folder reports what is wrong


def lerobot(found: Found) -> Iterator[Entry]:
    """Each episode from each camera, or from `found.camera`. Raises `ConfigError` for another version."""
    info = _info(found)
    cameras = info.cameras
    _check_cameras(found, info)
    if not 0 < found.tolerance_s < 0.5 / info.fps:
        raise ConfigError(
            f"{found.tolerance_s:g} is not between 0 s and half a frame, which is {0.5 / info.fps:.3g} s at "
            f"{info.fps:g} frames a second; with a larger tolerance, every time would match some frame",
            field="--tolerance-s",
            code="range",
        )
    if found.camera and found.camera not in cameras:
        raise ConfigError(
            f"there is no camera {found.camera}; cameras: {', '.join(cameras) or 'none'}",
            field="--camera",
            code="unknown",
        )
    cameras = [found.camera] if found.camera else cameras
    depth = [camera for camera in cameras if camera in info.depth_cameras]
    if found.camera and depth:
        others = ", ".join(camera for camera in info.cameras if camera not in info.depth_cameras)
        raise ConfigError(
            f"{found.camera} is {_DEPTH}; colour cameras: {others or 'none'}", field="--camera", code="unsupported"
        )
    episodes = _episodes(found, cameras)
    splits = _splits(info)
    files = {item.key: item for item in found.videos}
    template = info.video_path or ""
    for episode, values in _with_series(found, info, episodes):
        series, error = _packed(values)
        number, length = episode["episode_index"], episode["length"]
        tasks = tuple(str(task) for task in episode.get("tasks") or ())
        name = f"episode_{number:06d}"
        split = next((split for split, places in splits if number in places), "train")
        for camera in cameras:
            key = _place(found, "video_path", template, episode, f"videos/{camera}/", video_key=camera)
            entry_id = name if found.camera else f"{name}/{camera}"
            item = files.get(key)
            if camera in depth:
                what = f"depth: {camera} is {_DEPTH}"
                unread = Entry(entry_id, found.store.uri(key), tasks[0] if tasks else "", split, error=what)
                yield replace(unread, event=name, view=camera)
                continue
            if item is None:
                missing = "missing: no file"
                unread = Entry(entry_id, found.store.uri(key), tasks[0] if tasks else "", split, error=missing)
                yield replace(unread, event=name, view=camera)
                continue
            yield Entry(
                entry_id,
                found.store.uri(key),
                tasks[0] if tasks else "",
                split,
                item.size_bytes,
                item.etag,
                Segment(episode[f"videos/{camera}{_TIME}"], None, "s", length, info.fps, found.tolerance_s),
                group=name,
                event=name,
                view=camera,
                labels=tasks if len(tasks) > 1 else (),
                series=series,
                meta={"episode_index": number, "camera": camera, "robot_type": info.robot_type},
                error=error,
            )


def _check_cameras(found: Found, info: Info) -> None:
    """Cameras with images in the tables: adds a note, or raises `ConfigError` if there is nothing else to read."""
    pictures = info.picture_cameras
    where = "are images in the Parquet files, which ESSP does not read"
    if found.camera in pictures:
        raise ConfigError(f"the frames of {found.camera} {where}; {_TO_VIDEOS}", field="--camera", code="unsupported")
    if not info.cameras:
        what = f"the frames of {', '.join(pictures)} {where}; {_TO_VIDEOS}" if pictures else "it has no camera"
        raise ConfigError(f"{found.uri}: {what}")
    if not info.video_path:
        raise ConfigError(f"{found.uri}/{_INFO}: video_path: is required, because {', '.join(info.cameras)} are videos")
    if pictures and not found.camera:
        found.notes.append(f"the frames of {few(pictures)} {where}; {_TO_VIDEOS}")


def _packed(series: Mapping[str, NDArray[Any]]) -> tuple[bytes, str | None]:
    """The values of an episode in the form of an entry, or the reason why it has no values."""
    try:
        return pack(Targets(series=series)), None
    except ConfigError as error:
        return b"", str(error)


def _info(found: Found) -> Info:
    try:
        document = found.json(_INFO)
    except NotFound as error:
        raise ConfigError(f"{found.uri} is not a LeRobot folder: it has no {_INFO}") from error
    version = str(document.get("codebase_version", "none")) if isinstance(document, dict) else "none"
    if not version.startswith(_VERSION):
        raise ConfigError(
            f"{found.uri} has version {version} of the LeRobot format, not v3.0; convert it first: python -m "
            "lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    try:
        return Info.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{found.uri}/{_INFO}: {'; '.join(map(str, problems(error, Info)))}") from error


def _splits(info: Info) -> list[tuple[str, range]]:
    """Split -> its episodes; narrow ranges first, since they may be inside others. Raises `ConfigError`."""
    found = []
    for name, text in (info.splits or {}).items():
        match = _EPISODES_OF_SPLIT.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"{_INFO}: splits: {name}: {text!r:.80} is not a range of episodes, such as 0:50")
        found.append((canonical_split(name), range(int(match[1]), int(match[2]))))
    return sorted(found, key=lambda item: len(item[1]))


def _episodes(found: Found, cameras: Sequence[str]) -> list[dict[str, Any]]:
    """The columns of each episode, without statistics."""
    columns = [*_NEEDED, "tasks"]
    for camera in cameras:
        columns += [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index")]
        columns.append(f"videos/{camera}{_TIME}")
    rows: list[dict[str, Any]] = []
    for key in sorted(found.others):
        if key.startswith(_EPISODES) and key.endswith(".parquet"):
            table = _table(found, key, columns, ("tasks",))
            if "tasks" in table.column_names and not pa.types.is_nested(kind := table.column("tasks").type):
                raise ConfigError(f"{found.store.uri(key)}: column tasks is {kind}, not lists of texts")
            rows += table.to_pylist()
    if not rows:
        raise ConfigError(f"{found.uri}: {_EPISODES} contains no episode")
    return sorted(rows, key=lambda row: row["episode_index"])


def _with_series(
    found: Found, info: Info, episodes: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
    """Each episode with its values. Each file of values is read once. Adds notes on features that are left out."""
    kinds = {name: feature.get("dtype") for name, feature in info.features.items()}
    names = [name for name, kind in kinds.items() if kind not in _NO_NUMBERS]
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    with_gaps: list[str] = []
    for name, kind in kinds.items():
        if kind in _NO_NUMBERS - {"video", "image"}:
            left_out["are not numbers"].append(f"{name} ({kind})")
    by_file: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for episode in episodes:
        by_file[_place(found, "data_path", info.data_path, episode, "data/")].append(episode)
    for key, held in by_file.items():
        beside = [name for name in names if name != "index"]
        table = _table(found, key, ["index", *beside], beside)
        index = np.asarray(table.column("index").to_numpy())
        columns = {}
        for name in names:
            values = _values(table.column(name)) if name in table.column_names else f"have no column in {key}"
            if isinstance(values, str):
                left_out[values] += [] if name in left_out[values] else [name]
            else:
                columns[name] = values
                if table.column(name).null_count and name not in with_gaps:
                    with_gaps.append(name)
        for episode in held:
            wanted = (index >= episode["dataset_from_index"]) & (index < episode["dataset_to_index"])
            yield episode, {name: values[wanted] for name, values in columns.items()}
    if left_out:
        what = "; ".join(f"{', '.join(features)}, which {why}" for why, features in left_out.items())
        found.notes.append(f"features that are left out: {what}")
    if with_gaps:
        found.notes.append(f"features that have no value in some rows, where they are NaN: {', '.join(with_gaps)}")


def _values(column: Any) -> NDArray[Any] | str:
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
    flat = np.asarray(array.to_numpy(zero_copy_only=False))
    if int(np.prod(shape)) != len(flat) or flat.dtype == object:
        return "have no value in some rows"
    return flat.reshape(shape)


def _table(found: Found, key: str, columns: Sequence[str], optional: Sequence[str]) -> Any:
    """These columns of a Parquet file. Those that are not optional must be numbers without gaps.

    Raises `ConfigError` if the file has no such columns.
    """
    uri = found.store.uri(key)
    try:
        file = tables.opened(pa.BufferReader(found.store.get(key)))
        there = set(file.schema_arrow.names)
        if missing := [name for name in columns if name not in there and name not in optional]:
            raise ConfigError(f"{uri} has no column {', '.join(missing)}; is it LeRobot v3?")
        table = tables.read(file, [name for name in columns if name in there])
        table.validate(full=True)
        for place, name in enumerate(table.column_names):
            if name not in optional:
                table = table.set_column(place, name, _numbers(name, table.column(name)))
        return table
    except (NotFound, *tables.UNREADABLE) as error:
        raise ConfigError(f"{uri} cannot be read: {error}") from error


def _numbers(name: str, column: Any) -> Any:
    """Times as float64, all else as int64. Raises one of `tables.UNREADABLE` for any other value."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise ValueError(f"column {name} is {kind}, not numbers")
    try:
        numbers = column.cast(pa.float64() if name.endswith(_TIME) else pa.int64())
    except pa.ArrowInvalid as error:  # a fraction or NaN as int64
        raise ValueError(f"column {name}: {error}") from error
    if numbers.null_count or not np.isfinite(numbers.to_numpy()).all():
        raise ValueError(f"column {name} has no number in some rows")
    return numbers


def _place(found: Found, what: str, template: str, episode: Mapping[str, Any], of: str, **more: str) -> str:
    """The key of a file with this episode."""
    chunk, file = episode[f"{of}chunk_index"], episode[f"{of}file_index"]
    try:
        return template.format(chunk_index=chunk, file_index=file, **more)
    except (LookupError, ValueError, AttributeError) as error:
        raise ConfigError(f"{found.uri}/{_INFO}: {what} {template!r} does not result in a path ({error})") from error


LEROBOT = Layout(
    "lerobot",
    "meta/info.json with codebase_version",
    is_lerobot,
    lerobot,
    files=(*LISTS, ".parquet"),
    episodes=True,
)

"""LeRobot folders: episodes of a robot, with videos of several cameras, and states and actions for each frame.

`lerobot_folder.py` reads the files, of the layouts v3.0 and v2.x. An episode is an event, and each camera is a view of
it. A row of the catalog is an episode from one camera: the frames of the MP4 from `from_timestamp`, as many as the
episode has. Frame k is the one nearest to `from_timestamp + k / fps`; a note says how far off it is, if that is more
than LeRobot's 0.1 ms. With `tolerance_s`, a video whose frames are farther off is a row with an error. Depth cameras
have a note, and only clips of `gray16` are read from them. Class and labels are the tasks, the group is the episode,
and each numeric feature is a series. Texts that frames have, such as subtasks, are in `row.meta`, each once, in order
of appearance. `Found.notes` lists the features that are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from essp.catalog.entry import Entry, Segment
from essp.catalog.found import Found, few
from essp.catalog.layout import LISTS, Layout
from essp.catalog.lerobot_folder import INFO, NO_NUMBERS, TIME, Info, LeRobotFolder, texts_of, values_of
from essp_common.catalog.targets import Targets, pack
from essp_common.errors import ConfigError, NotFound

_TO_VIDEOS = "convert them to videos: lerobot-edit-dataset --operation.type convert_image_to_video"
_PICTURES = (
    f"are images in the Parquet files, which catalogs do not read; read them with essp.lerobot.LeRobotDataset, or "
    f"{_TO_VIDEOS}"
)


def is_lerobot(found: Found) -> str:
    if found.given or INFO not in found.others:
        return ""
    document = found.json(INFO)
    if not isinstance(document, dict) or "codebase_version" not in document:
        return ""
    return f"{INFO} of version {document['codebase_version']}; cameras: {_shown_cameras(document)}"


def _shown_cameras(document: Any) -> str:
    try:
        info = Info.model_validate(document)
        return ", ".join([*info.cameras, *(f"{name} (pictures)" for name in info.picture_cameras)]) or "none"
    except ValidationError:
        return "not known"  # reading the folder reports what is wrong


def lerobot(found: Found) -> Iterator[Entry]:
    """Each episode from each camera, or from `found.camera`. Raises `ConfigError` for another version."""
    folder = LeRobotFolder(found.store, found.others)
    info = folder.info
    cameras = _cameras(found, folder)
    half_s = 0.5 / info.fps
    if found.tolerance_s is not None and not 0 < found.tolerance_s < half_s:
        raise ConfigError(
            f"{found.tolerance_s:g} is not between 0 s and half a frame, which is {half_s:.3g} s at "
            f"{info.fps:g} frames a second; with a larger tolerance, every time would match some frame",
            field="--tolerance-s",
            code="range",
        )
    episodes = folder.episodes(cameras).to_pylist()
    splits = folder.splits()
    files = {item.key: item for item in found.videos}
    for episode, values, texts in _with_values(found, folder, episodes):
        series, error = _packed(values)
        number, length = episode["episode_index"], episode["length"]
        tasks = tuple(str(task) for task in episode.get("tasks") or ())
        name = f"episode_{number:06d}"
        split = next((split for split, places in splits if number in places), "train")
        for camera in cameras:
            key = folder.video_key(episode, camera)
            entry_id = name if found.camera else f"{name}/{camera}"
            item = files.get(key)
            if item is None:
                unread = Entry(
                    entry_id, folder.store.uri(key), tasks[0] if tasks else "", split, error="missing: no file"
                )
                yield replace(unread, event=name, view=camera)
                continue
            depth = camera in info.depth_cameras
            yield Entry(
                entry_id,
                found.store.uri(key),
                tasks[0] if tasks else "",
                split,
                item.size_bytes,
                item.etag,
                Segment(episode[f"videos/{camera}{TIME}"], None, "s", length, info.fps, found.tolerance_s),
                group=name,
                event=name,
                view=camera,
                labels=tasks if len(tasks) > 1 else (),
                series=series,
                meta={**texts, "episode_index": number, "camera": camera, "robot_type": info.robot_type},
                depth=depth,
                error=error,
            )


def _cameras(found: Found, folder: LeRobotFolder) -> list[str]:
    """The cameras to list. Adds a note on those that are left out, and raises `ConfigError` if none is left."""
    info = folder.info
    cameras, pictures = info.cameras, info.picture_cameras
    if found.camera in pictures:
        raise ConfigError(f"the frames of {found.camera} {_PICTURES}", field="--camera", code="unsupported")
    if not cameras:
        what = f"the frames of {', '.join(pictures)} {_PICTURES}" if pictures else "it has no camera"
        raise ConfigError(f"{found.uri}: {what}", code="unsupported" if pictures else "empty")
    if not info.video_path:
        raise ConfigError(f"{found.uri}/{INFO}: video_path: is required, because {', '.join(cameras)} are videos")
    if not found.camera:
        if pictures:
            found.notes.append(f"the frames of {few(pictures)} {_PICTURES}")
        return cameras
    if found.camera not in cameras:
        raise ConfigError(
            f"there is no camera {found.camera}; cameras: {', '.join(cameras)}", field="--camera", code="unknown"
        )
    return [found.camera]


def _packed(series: Mapping[str, NDArray[Any]]) -> tuple[bytes, str | None]:
    """The values of an episode in the form of an entry, or the reason why it has no values."""
    try:
        return pack(Targets(series=series)), None
    except ConfigError as error:
        return b"", str(error)


def _with_values(
    found: Found, folder: LeRobotFolder, episodes: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, list[str]]]]:
    """Each episode with its series and texts. Each file is read once. Adds notes on features that are left out."""
    kinds = {name: feature.get("dtype") for name, feature in folder.info.features.items()}
    names = [name for name, kind in kinds.items() if kind not in NO_NUMBERS]
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    with_gaps: list[str] = []
    said = [name for name, kind in kinds.items() if kind in NO_NUMBERS - {"video", "image"}]
    by_file: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for episode in episodes:
        by_file[folder.data_key(episode)].append(episode)
    for key, held in by_file.items():
        beside = [name for name in (*names, *said) if name != "index"]
        try:
            table = folder.table(key, ["index", *beside], beside)
        except NotFound as error:
            raise ConfigError(f"{found.store.uri(key)} cannot be read: {error}") from error
        index = np.asarray(table.column("index").to_numpy())
        columns = {}
        for name in names:
            values = values_of(table.column(name)) if name in table.column_names else f"have no column in {key}"
            if isinstance(values, str):
                left_out[values] += [] if name in left_out[values] else [name]
            else:
                columns[name] = values
                if table.column(name).null_count and name not in with_gaps:
                    with_gaps.append(name)
        texts = {}
        for name in said:
            column = texts_of(table.column(name)) if name in table.column_names else None
            if column is None:
                left_out["are not texts"] += [] if name in left_out["are not texts"] else [name]
            else:
                texts[name] = column
        for episode in held:
            wanted = (index >= episode["dataset_from_index"]) & (index < episode["dataset_to_index"])
            if folder.an_episode_a_file:
                wanted = np.ones(len(index), np.bool_)
            places = np.flatnonzero(wanted).tolist()
            told = {name: list(dict.fromkeys(t for at in places for t in of[at])) for name, of in texts.items()}
            yield episode, {name: values[wanted] for name, values in columns.items()}, told
    if left_out:
        what = "; ".join(f"{', '.join(features)}, which {why}" for why, features in left_out.items())
        found.notes.append(f"features that are left out (essp.lerobot.LeRobotDataset has them): {what}")
    if with_gaps:
        found.notes.append(f"features that have no value in some rows, where they are NaN: {', '.join(with_gaps)}")


LEROBOT = Layout(
    "lerobot",
    "meta/info.json with codebase_version",
    is_lerobot,
    lerobot,
    files=(*LISTS, ".parquet"),
    episodes=True,
)

"""What a data set says about itself: `dataset.meta`, with the members of LeRobot's own that read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp.catalog.lerobot_folder import LeRobotFolder, is_depth
from essp.lerobot.place import store_of
from essp_common.distribution import needs_extra
from essp_common.objects import tables

if TYPE_CHECKING:
    import pandas as pd


class Episodes(Sequence[dict[str, Any]]):
    """The episodes: `episodes[3]` is the fourth, as a dictionary, and `episodes["length"]` is a column.

    For example:

        dataset.meta.episodes[0]["tasks"], sum(dataset.meta.episodes["length"])
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.column_names)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice | str) -> list[Any]: ...

    def __getitem__(self, place: int | slice | str) -> Any:
        if isinstance(place, str):
            return self._table.column(place).to_pylist()
        if isinstance(place, slice):
            return tables.taken(self._table, np.arange(len(self))[place]).to_pylist()
        if not -len(self) <= place < len(self):
            raise IndexError(f"episode {place} of {len(self)}")
        return dict(self._table.slice(place % len(self), 1).to_pylist()[0])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))


class Metadata:
    """Features, statistics, tasks and episodes of a data set.

    For example:

        dataset.meta.stats["action"]["mean"], dataset.meta.camera_keys, dataset.meta.fps
    """

    def __init__(self, repo_id: str, root: str) -> None:
        """`root`: the URI of the folder. Raises `ConfigError` if it is not a LeRobot folder."""
        self.repo_id = repo_id
        self.root = root.removeprefix("file://")
        self.folder = folder = LeRobotFolder(store_of(root))
        self._uri = root
        self.info: dict[str, Any] = folder.info.model_dump()
        self.features: dict[str, dict[str, Any]] = {
            name: {**feature, "shape": tuple(feature.get("shape") or ())}
            for name, feature in folder.info.features.items()
        }
        self.info["features"] = self.features
        self.revision: str = folder.info.codebase_version

    def __reduce__(self) -> tuple[Any, ...]:
        return Metadata, (self.repo_id, self._uri)

    @cached_property
    def episodes(self) -> Episodes:
        """All episodes of the data set."""
        return Episodes(self.folder.episodes(self.video_keys, whole=True))

    @cached_property
    def stats(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Feature -> `min`, `max`, `mean`, `std`, ... as arrays; empty if the folder has none."""
        return self.folder.stats()

    @cached_property
    def task_names(self) -> Mapping[int, str]:
        """The tasks by `task_index`."""
        return self.folder.tasks()

    @property
    def tasks(self) -> pd.DataFrame:
        """The tasks as LeRobot has them: a table of `task_index` by task. Needs pandas."""
        with needs_extra("meta.tasks"):
            import pandas as pd
        names = dict(sorted(self.task_names.items()))
        return pd.DataFrame({"task_index": list(names)}, index=pd.Index(list(names.values()), name="task"))

    def get_task_index(self, task: str) -> int | None:
        """The number of a task; None if the data set has no such task."""
        return next((number for number, name in self.task_names.items() if name == task), None)

    @property
    def fps(self) -> int | float:
        """Frames a second."""
        fps = self.folder.info.fps
        return int(fps) if fps == int(fps) else fps

    @property
    def robot_type(self) -> str | None:
        """The robot that was recorded."""
        return self.folder.info.robot_type

    @property
    def video_keys(self) -> list[str]:
        """The cameras that are videos."""
        return [name for name, feature in self.features.items() if feature.get("dtype") == "video"]

    @property
    def image_keys(self) -> list[str]:
        """The cameras that are pictures in the tables."""
        return [name for name, feature in self.features.items() if feature.get("dtype") == "image"]

    @property
    def camera_keys(self) -> list[str]:
        """All cameras."""
        return [name for name, feature in self.features.items() if feature.get("dtype") in ("video", "image")]

    @property
    def depth_keys(self) -> list[str]:
        """The cameras that measure distances."""
        return [name for name in self.camera_keys if is_depth(self.features[name])]

    @property
    def names(self) -> dict[str, Any]:
        """Feature -> the names of its dimensions."""
        return {name: feature.get("names") for name, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Feature -> its shape."""
        return {name: feature["shape"] for name, feature in self.features.items()}

    @property
    def total_episodes(self) -> int:
        """Episodes of the whole data set."""
        return len(self.episodes)

    @property
    def total_frames(self) -> int:
        """Frames of the whole data set."""
        return int(np.sum(self.episodes["length"]))

    @property
    def total_tasks(self) -> int:
        """Tasks of the whole data set."""
        return len(self.task_names)

    @property
    def data_path(self) -> str:
        """The template of the tables' paths."""
        return self.folder.info.data_path

    @property
    def video_path(self) -> str | None:
        """The template of the videos' paths."""
        return self.folder.info.video_path

    @property
    def chunks_size(self) -> int:
        """The largest number of files in a folder."""
        return self.folder.info.chunks_size

    def get_data_file_path(self, ep_index: int) -> PurePosixPath:
        """The path, below `root`, of the table with an episode."""
        return PurePosixPath(self.folder.data_key(self.episodes[ep_index]))

    def get_video_file_path(self, ep_index: int, vid_key: str) -> PurePosixPath:
        """The path, below `root`, of the video with an episode from a camera."""
        return PurePosixPath(self.folder.video_key(self.episodes[ep_index], vid_key))

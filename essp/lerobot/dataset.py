"""`essp.lerobot.LeRobotDataset`: LeRobot's data sets by ESSP's decoder, with the arguments and items of LeRobot's.

An item is a frame of an episode: pictures of all cameras, states and actions, and with `delta_timestamps` those of
other moments around it. A batch is read at once: `__getitems__`, which a `DataLoader` calls, opens each file once, and
decodes frames that follow one another in one go. `stream` goes further, and chooses an order in which they do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate, get_worker_info

from essp.api.arguments import function_of, is_whole, mapping_of, plain, whole_number
from essp.lerobot.depth import Distances, Unit
from essp.lerobot.metadata import Metadata
from essp.lerobot.pictures import Pictures
from essp.lerobot.place import root_of
from essp.lerobot.rows import Rows, keys_with
from essp.lerobot.stream import Item, Raw, Stream, Window
from essp.lerobot.videos import PICTURES, Moment, Videos, grouped
from essp_common.errors import ConfigError
from essp_common.runtime.cores import cpu_count
from essp_common.validation import shown, suggested


def collate(items: Sequence[Item]) -> Item:
    """Stack items as a `DataLoader` does, but leave as lists what has no common shape: texts, rows of several lengths.

    Pictures that were read as a batch are not copied again.

        torch.utils.data.DataLoader(data, batch_size=32, collate_fn=essp.lerobot.collate)
    """
    found: Item = {}
    for name in items[0]:
        values = [item[name] for item in items]
        alike = all(isinstance(value, torch.Tensor) and value.shape == values[0].shape for value in values)
        found[name] = _stacked(values) if alike else values
    return found


def _stacked(values: list[torch.Tensor]) -> torch.Tensor:
    """One tensor; without a copy if the values follow each other in memory and fill it."""
    first, size = values[0], values[0].numel()
    memory = first.untyped_storage()
    whole = size > 0 and memory.nbytes() == len(values) * size * first.element_size()
    for place, value in enumerate(values if whole else ()):
        begins = value.storage_offset() == place * size and value.is_contiguous()
        whole = whole and begins and value.untyped_storage().data_ptr() == memory.data_ptr()
    if whole and first.dtype == values[-1].dtype:
        return first.as_strided((len(values), *first.shape), (size, *first.stride()))
    return default_collate(values)  # type: ignore[no-any-return]


class LeRobotDataset(Dataset[Item]):
    """A data set of LeRobot (v3.0, v2.1 or v2.0), item by item as LeRobot's own class gives it.

        steps = {"observation.images.top": [-0.1, 0], "action": [k / 30 for k in range(16)]}
        data = LeRobotDataset("org/pick_cube", root="data/pick_cube", delta_timestamps=steps)
        data[0]["observation.images.top"]  # (2, 3, H, W) float32, 0 to 1
        data[0]["action"]                  # (16, N) float32, and data[0]["action_is_pad"] (16,) bool
        for batch in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=4): ...

    An item has for each camera `(3, H, W)` float32 in 0 to 1 (or uint8 with `return_uint8`), for each other feature its
    values, and `task`, the task as text. For features in `delta_timestamps` there is one more axis in front, and
    `NAME_is_pad`, which says what lies outside the episode, where the first or last frame stands in. `timestamp`,
    `frame_index`, `episode_index`, `index` and `task_index` are scalars. Texts stay texts; rows of several lengths are
    lists.

    Depth cameras are `(1, H, W)` uint16: millimetres if the data set says what its codes mean, otherwise the codes.
    With `depth_output_unit` they are float32, as LeRobot gives them.

    It can be indexed in any order, from several threads, and by the workers of a `DataLoader`, forked or spawned.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | Path | None = None,
        episodes: Sequence[int] | None = None,
        episode_filter: Callable[[dict[str, Any]], bool] | None = None,
        image_transforms: Callable[[torch.Tensor], torch.Tensor] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        download_videos: bool = True,
        video_backend: str | None = None,
        return_uint8: bool = False,
        depth_output_unit: Unit | None = None,
    ) -> None:
        """Read what the folder declares, and its tables; no video is opened.

        repo_id: the name of the data set, which finds it in LeRobot's folders if there is no `root`.
        root: its folder: a path, or a URI in a store of `ESSP_STORES`, such as `s3://bucket/pick_cube`.
        episodes: the numbers of the episodes to use. Default: all.
        episode_filter: a function that is called with the row of an episode in `meta.episodes`, and says whether to use
            it.
        image_transforms: called with the pictures of each colour camera, as the item has them.
        delta_timestamps: for features and cameras, the times of their values in seconds from the item's frame:
            multiples of `1 / fps`.
        tolerance_s: a frame must be shown less than this many seconds from its timestamp; otherwise its item raises
            `BadVideo`, which says how far off it is. `delta_timestamps` may be as far from multiples of `1 / fps`.
        return_uint8: pictures are uint8, as decoded: a quarter of the bytes.
        depth_output_unit: `m` or `mm`: distances are float32 in this unit, as LeRobot gives them.
        revision, force_cache_sync, download_videos, video_backend: of LeRobot's class; they have no effect, because
            nothing is downloaded, and ESSP decodes.

        Raises `ConfigError` for a folder that is not a data set, and for arguments that do not fit it.
        """
        self.repo_id = repo_id
        uri = root_of(repo_id, root)
        self.root = uri.removeprefix("file://")
        self.meta = Metadata(repo_id, uri)
        self.revision = revision or self.meta.revision
        self.tolerance_s = _tolerance(tolerance_s)
        self.delta_timestamps = delta_timestamps
        self.delta_indices = _deltas(delta_timestamps, self.meta, self.tolerance_s)
        self.image_transforms = function_of("image_transforms", image_transforms)
        if depth_output_unit not in (None, "m", "mm"):
            raise ConfigError(
                f"must be 'm', 'mm' or None, got {shown(depth_output_unit)}", field="depth_output_unit", code="unknown"
            )
        self.depth_output_unit = depth_output_unit
        self.episodes = self._chosen(episodes, function_of("episode_filter", episode_filter))
        self._return_uint8 = bool(return_uint8)
        known = self.meta.episodes
        chosen = None if self.episodes is None else set(self.episodes)
        listed = None if chosen is None else [row for row in known if row["episode_index"] in chosen]
        self._rows = Rows(self.meta.folder, self.meta.features, keys_with(self.meta.folder, listed), chosen)
        if not len(self._rows):
            raise ConfigError(f"{self.root} has no frame in these episodes", field="episodes", code="empty")
        self._videos = Videos(uri, self.tolerance_s)
        self._pictures = Pictures(uri, self._rows.files, self.meta.image_keys)
        self._depth = {name: Distances(self.meta.features[name], depth_output_unit) for name in self.meta.depth_keys}
        self._fallback_tasks = dict(zip(known["episode_index"], _firsts(known), strict=True))
        self._tasks = self.meta.task_names
        self._places = _places(self.meta, listed)

    @property
    def fps(self) -> int | float:
        """Frames a second."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """The features, with dtype, shape and names."""
        return self.meta.features

    @property
    def camera_keys(self) -> list[str]:
        """The cameras."""
        return self.meta.camera_keys

    @property
    def num_frames(self) -> int:
        """Frames of the chosen episodes: the number of items."""
        return len(self._rows)

    @property
    def num_episodes(self) -> int:
        """The number of chosen episodes."""
        return len(self._rows.episodes)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"LeRobotDataset({self.repo_id!r}, {self.num_episodes} episodes, {len(self)} frames, root={self.root!r})"

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        """An item, or the items of a slice. Raises `IndexError`, and `BadVideo` for a frame that cannot be decoded."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[Item]:
        """Several items, in the order of the indices; their frames are decoded together."""
        rows = [self._row(index) for index in indices]
        return self.built(rows, self.pictures([self.window(row) for row in rows]))

    def set_image_transforms(self, image_transforms: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        """Use other transforms from now on."""
        self.image_transforms = function_of("image_transforms", image_transforms)

    def clear_image_transforms(self) -> None:
        """Use no transforms from now on."""
        self.image_transforms = None

    def stream(
        self,
        *,
        shuffle: bool = True,
        clips_per_visit: int = 16,
        window: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Stream:
        """The items in an order that decodes each frame about once: a `torch.utils.data.IterableDataset`.

            for batch in data.stream(clips_per_visit=32, batch_size=64): ...  # one epoch

        `clips_per_visit` items that follow one another in an episode are decoded in one go, and mixed with those of
        other visits within a window. Each item comes once an epoch; the next epoch has another order.

        shuffle: visits in random order, and mixed; False: in the order of the episodes.
        clips_per_visit: items of a visit; 1 is a global shuffle.
        window: items that are mixed, a multiple of `clips_per_visit`. Default: as many visits as fit into 256 MiB, from
            8 to 64. Two windows are in memory at a time, as uint8.
        batch_size: items are stacked (`essp.lerobot.collate`) as by a `DataLoader`. None: single items.
        seed: the same seed gives the same order.
        drop_last: leave out the last batch of an epoch if it is smaller.
        rank, world_size: take this rank's share of the items. Default: as torchrun says. Workers of a `DataLoader`
            share those of their rank.
        """
        return Stream(
            self,
            shuffle=bool(shuffle),
            clips_per_visit=whole_number("clips_per_visit", clips_per_visit, 1),
            window=None if window is None else whole_number("window", window, 1),
            batch_size=None if batch_size is None else whole_number("batch_size", batch_size, 1),
            seed=whole_number("seed", seed, 0),
            drop_last=bool(drop_last),
            rank=rank,
            world_size=world_size,
        )

    def close(self) -> None:
        """Close the open videos; the next item opens them again."""
        self._videos.close()

    @property
    def frame_bytes(self) -> int:
        """Bytes of the decoded pictures of one item, as uint8."""
        found = 0
        for camera in self.camera_keys:
            sides = self.features[camera]["shape"]
            count = len(self.delta_indices.get(camera, [0]))
            found += int(np.prod(sides or (1,))) * count
        return found

    @property
    def visits(self) -> NDArray[np.int64]:
        """`(episodes, 2)`: the first item of each episode, and the one after its last."""
        return self._rows.episodes

    def window(self, row: int) -> Window:
        """The rows whose pictures the item of a row has, by camera."""
        begin, end = self._rows.bounds(row)
        return {
            camera: [min(max(row + step, begin), end - 1) for step in self.delta_indices.get(camera, (0,))]
            for camera in self.camera_keys
        }

    def pictures(self, windows: Sequence[Window]) -> dict[tuple[str, int], Raw]:
        """The decoded pictures of these items, by camera and row. Raises `BadVideo`."""
        cameras = set(self.meta.video_keys)
        wanted: dict[tuple[str, int], None] = {}
        for window in windows:
            for camera, rows in window.items():
                wanted.update(dict.fromkeys((camera, row) for row in rows))
        moments = []
        homes: list[tuple[str, str, int]] = []
        for camera, row in wanted:
            if camera in cameras:
                key, moment = self._moment(camera, row)
                moments.append((key, camera in self._depth, moment))
                homes.append((camera, key, row))
        decoded = self._videos.read({k: v.values() for k, v in grouped(moments).items()}, _threads())
        found: dict[tuple[str, int], Raw] = {(camera, row): decoded[key][row] for camera, key, row in homes}
        for camera, row in wanted:
            if camera not in cameras:
                place = int(self._rows.file_of[row]), int(self._rows.row_in_file[row])
                picture = self._pictures.read(camera, *place)
                depth = self._depth.get(camera)
                found[camera, row] = picture if depth is None else depth.of_picture(picture.reshape(picture.shape[-2:]))
        return found

    def built(self, rows: Sequence[int], pictures: Mapping[tuple[str, int], Raw]) -> list[Item]:
        """The items of these rows. `pictures`: their decoded pictures. No two items share memory."""
        images = self._images(rows, pictures)
        return [self._item(row, {camera: of[place] for camera, of in images.items()}) for place, row in enumerate(rows)]

    def _images(
        self, rows: Sequence[int], pictures: Mapping[tuple[str, int], Raw]
    ) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """Camera -> the pictures of each row, `(C, H, W)`, or `(T, C, H, W)` with `delta_timestamps`; stacked if all
        have one size."""
        windows = [self.window(row) for row in rows]
        found: dict[str, torch.Tensor | list[torch.Tensor]] = {}
        for camera in self.camera_keys:
            raw = [[pictures[camera, row] for row in window[camera]] for window in windows]
            moments = len(raw[0])
            # As LeRobot, which has no axis for a single moment of a video.
            alone = moments == 1 and (camera not in self.delta_indices or camera in self.meta.video_keys)
            if len({each.shape for of in raw for each in of}) == 1:
                stacked = self.tensor(camera, [each for of in raw for each in of])
                found[camera] = stacked if alone else stacked.reshape(len(rows), moments, *stacked.shape[1:])
            else:
                found[camera] = [self.tensor(camera, of)[0] if alone else self.tensor(camera, of) for of in raw]
        return found

    def batch(self, rows: Sequence[int], pictures: Mapping[tuple[str, int], Raw]) -> Item:
        """The items of these rows, stacked; equal to `collate` of `built`."""
        if self.image_transforms is not None:
            return collate(self.built(rows, pictures))
        images = self._images(rows, pictures)
        bounds = np.array([self._rows.bounds(row) for row in rows])
        at = np.array(rows)[:, None]
        found: Item = {}
        for name in self.features:
            if name in images:
                found[name] = images[name]
            elif name in self._rows:
                steps = self.delta_indices.get(name)
                if steps is None:
                    found[name] = self._rows.values(name, list(rows))
                    continue
                wanted = np.clip(at + np.array(steps), bounds[:, :1], bounds[:, 1:] - 1)
                values = self._rows.values(name, wanted.reshape(-1).tolist())
                if isinstance(values, torch.Tensor):
                    found[name] = values.reshape(*wanted.shape, *values.shape[1:])
                else:
                    found[name] = [values[place : place + len(steps)] for place in range(0, len(values), len(steps))]
        for name, steps in self.delta_indices.items():
            places = at + np.array(steps)
            found[f"{name}_is_pad"] = torch.from_numpy((places < bounds[:, :1]) | (places >= bounds[:, 1:]))
        found["task"] = [self._task(row) for row in rows]
        return found

    def tensor(self, camera: str, raw: Sequence[Raw]) -> torch.Tensor:
        """`(N, C, H, W)`, the pictures of a camera as items have them, but without `image_transforms`."""
        if camera in self._depth:
            stacked = torch.stack([each if isinstance(each, torch.Tensor) else torch.from_numpy(each) for each in raw])
            return stacked if camera in self.meta.image_keys else self._depth[camera].of_codes(stacked)
        if self._return_uint8:
            return torch.from_numpy(np.stack(raw))
        found = torch.from_numpy(PICTURES.empty((len(raw), *raw[0].shape), np.float32))
        for place, each in enumerate(raw):
            for channel, plane in enumerate(torch.from_numpy(each)):  # which fits into a cache
                found[place, channel].copy_(plane).div_(255)
        return found

    def _item(self, row: int, images: dict[str, torch.Tensor]) -> Item:
        rows, steps = self._rows, self.delta_indices
        begin, end = rows.bounds(row)
        item: Item = {}
        for name in self.features:
            if name in images:
                depth = name in self._depth
                transform = None if depth else self.image_transforms
                item[name] = images[name] if transform is None else transform(images[name])
            elif name in rows:
                of = steps.get(name)
                item[name] = (
                    rows.value(name, row)
                    if of is None
                    else rows.values(name, [min(max(row + step, begin), end - 1) for step in of])
                )
        for name, of in steps.items():
            item[f"{name}_is_pad"] = torch.tensor([not begin <= row + step < end for step in of], dtype=torch.bool)
        item["task"] = self._task(row)
        return item

    def _task(self, row: int) -> str:
        numbers = self._rows.numbers
        known = "task_index" in numbers and numbers["task_index"].dtype == torch.int64  # float32 if values are missing
        number = int(numbers["task_index"][row]) if known else -1
        return self._tasks.get(number, self._fallback_tasks.get(int(numbers["episode_index"][row]), ""))

    def _moment(self, camera: str, row: int) -> tuple[str, Moment]:
        """The file with a row's frame, and where in it."""
        episode = int(self._rows.numbers["episode_index"][row])
        key, from_s = self._places[camera][episode]
        second = from_s + float(self._rows.numbers["timestamp"][row])
        return key, (row, second, f"episode {episode} of {camera}")

    def _row(self, index: Any) -> int:
        try:
            found = operator.index(index)
        except TypeError as error:
            raise ConfigError(
                f"must be an integer or a slice, got {shown(index)}", field="index", code="type"
            ) from error
        if not -len(self) <= found < len(self):
            raise IndexError(f"item {found} of a data set that has {len(self)}")
        return found % len(self)

    def _chosen(self, episodes: Any, episode_filter: Callable[[dict[str, Any]], bool] | None) -> list[int] | None:
        """The numbers of the chosen episodes; None: all. Raises `ConfigError`."""
        known = self.meta.episodes["episode_index"]
        chosen = None
        if episodes is not None:
            given = plain(episodes)
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise ConfigError(f"must be a list of integers, got {shown(episodes)}", field="episodes", code="type")
            chosen = [whole_number("episodes", number, 0) for number in given]
            if strange := sorted(set(chosen) - set(known)):
                few = ", ".join(map(str, strange[:3]))
                raise ConfigError(
                    f"{self.root} has no episode {few}; its {len(known)} episodes have numbers from {min(known)} to "
                    f"{max(known)}",
                    field="episodes",
                    code="unknown",
                )
        if episode_filter is not None:
            able = {row["episode_index"] for row in self.meta.episodes if episode_filter(row)}
            chosen = sorted(able if chosen is None else able & set(chosen))
        if chosen == []:
            raise ConfigError("no episode is chosen", field="episodes", code="empty")
        return chosen


def _places(meta: Metadata, listed: Sequence[dict[str, Any]] | None) -> dict[str, dict[int, tuple[str, float]]]:
    """Camera -> episode -> its file, and when it begins there."""
    rows = listed if listed is not None else meta.episodes[:]
    return {
        camera: {
            row["episode_index"]: (meta.folder.video_key(row, camera), row[f"videos/{camera}/from_timestamp"])
            for row in rows
        }
        for camera in meta.video_keys
    }


def _firsts(episodes: Any) -> list[str]:
    """The first task of each episode."""
    if "tasks" not in episodes.column_names:
        return [""] * len(episodes)
    return [str(tasks[0]) if tasks else "" for tasks in episodes["tasks"]]


def _deltas(given: Any, meta: Metadata, tolerance_s: float) -> dict[str, list[int]]:
    """Feature -> the distances of its values from the item's frame, in frames. Raises `ConfigError`."""
    if given is None:
        return {}
    found = {}
    for name, steps in mapping_of("delta_timestamps", given).items():
        field = f"delta_timestamps.{name}"
        if name not in meta.features:
            raise ConfigError(f"is not a feature; {suggested(str(name), meta.features)}", field=field, code="unknown")
        seconds = plain(list(steps)) if isinstance(steps, Iterable) and not isinstance(steps, str) else steps
        if not isinstance(seconds, list) or not all(is_whole(s) or isinstance(s, float) for s in seconds):
            raise ConfigError(f"must be a list of seconds, got {shown(steps)}", field=field, code="type")
        if not seconds:
            raise ConfigError("must have at least one time", field=field, code="empty")
        for second in seconds:
            if not isfinite(second) or abs(second * meta.fps - round(second * meta.fps)) / meta.fps > tolerance_s:
                raise ConfigError(
                    f"{second:g} s is not a multiple of 1/{meta.fps:g} s within tolerance_s={tolerance_s:g}",
                    field=field,
                    code="invalid",
                )
        found[name] = [round(second * meta.fps) for second in seconds]
    return found


def _tolerance(value: Any) -> float:
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise ConfigError(f"must be seconds, got {shown(value)}", field="tolerance_s", code="type")
    if not (isfinite(number) and number > 0):
        raise ConfigError(f"must be more than 0 s, got {shown(value)}", field="tolerance_s", code="range")
    return float(number)


def _threads() -> int:
    """Threads that decode: one in a worker of a `DataLoader`, since it has its own processes; else one a core."""
    return 1 if get_worker_info() is not None else cpu_count()

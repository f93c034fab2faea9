"""Frames of videos, each file opened once and read in one go.

A file stays open for the next batch, as many as `_OPEN` of them in a process. A fork opens its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from essp.lerobot.buffers import Buffers
from essp.lerobot.place import store_of
from essp_common.errors import BadVideo, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.runtime.forks import Mutex, follow
from essp_engine.video.planar import PlanarConverter, displayed
from essp_engine.video.planes import grey16
from essp_engine.video.timed import TimedReader

_OPEN = 96

PICTURES = Buffers(3 << 29)
"""The memory of pictures in this process."""

Picture = NDArray[Any]
"""`(3, H, W)` uint8, RGB, or `(1, H, W)` uint16, distances."""
Moment = tuple[int, float, str]
"""The number of a row, the second of the file at which its frame is shown, and what to call it in messages."""


class Videos:
    """The videos of a data set, in this process."""

    def __init__(self, root: str, tolerance_s: float) -> None:
        """`root`: the URI of the folder."""
        self._root, self._store = root, store_of(root)
        self._tolerance_s = tolerance_s
        self._open: OrderedDict[str, _Video] = OrderedDict()
        self._of_parents: list[Any] = []
        self._mutex = Mutex()
        follow(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return Videos, (self._root, self._tolerance_s)

    def forked(self) -> None:
        """Leave the files of the parent, which may be in the middle of a read."""
        self._of_parents.append(self._open)
        self._open = OrderedDict()

    def close(self) -> None:
        """Close all files."""
        with self._mutex.held:
            videos, self._open = list(self._open.values()), OrderedDict()
        for video in videos:
            video.close()

    def read(
        self, wanted: Mapping[tuple[str, bool], Collection[Moment]], threads: int
    ) -> dict[str, dict[int, Picture]]:
        """For each file, the pictures of its rows. `wanted`: file, and whether it has distances -> moments.

        Raises `BadVideo`, naming the episode.
        """
        tasks = [(key, depth, moments) for (key, depth), moments in wanted.items()]
        if threads == 1 or len(tasks) < 2:
            return {key: self._read(key, depth, moments) for key, depth, moments in tasks}
        with ThreadPoolExecutor(min(threads, len(tasks)), "essp-lerobot") as pool:
            found = pool.map(lambda task: self._read(*task), tasks)
            return {key: pictures for (key, _, _), pictures in zip(tasks, found, strict=True)}

    def _read(self, key: str, depth: bool, moments: Collection[Moment]) -> dict[int, Picture]:
        while True:
            video = self._video(key)
            with video.mutex.held:
                if not video.closed:  # else another thread has just closed it, to open others
                    return video.read(moments, depth, self._tolerance_s)

    def _video(self, key: str) -> _Video:
        with self._mutex.held:
            if (found := self._open.get(key)) is not None:
                self._open.move_to_end(key)
                return found
        video = _Video(self._store, key)
        with self._mutex.held:
            self._open.setdefault(key, video)
            found = self._open[key]
            surplus = [self._open.popitem(last=False)[1] for _ in range(len(self._open) - _OPEN)]
        for old in [*surplus, *([video] if found is not video else [])]:
            old.close()
        return found


class _Video:
    """One open file. Its methods are called with its mutex held, except for `close`."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.mutex = Mutex()
        self.closed = False
        self._name = store.uri(key)
        self._source: BinaryIO | None = None
        try:
            path = store.local_path(key)
            if path is None:
                self._source = store.open(key)
            self._reader = TimedReader(path if path is not None else self._source)  # type: ignore[arg-type]
        except NotFound as error:
            raise BadVideo(f"{self._name} does not exist", "vanished") from error
        except BadVideo as error:
            raise BadVideo(f"{self._name}: {error}", error.kind) from error
        self._converter = PlanarConverter()

    def close(self) -> None:
        with self.mutex.held:
            self.closed = True
            self._reader.close()
            if self._source is not None:
                self._source.close()

    def read(self, moments: Collection[Moment], depth: bool, tolerance_s: float) -> dict[int, Picture]:
        """The picture of each row."""
        ordered = list(moments)
        numbers, off_s = self._reader.times.nearest(np.array([second for _, second, _ in ordered]))
        for (_, second, name), late_s in zip(ordered, off_s.tolist(), strict=True):
            if not late_s < tolerance_s:
                raise self._off(name, second, late_s, tolerance_s)
        rows: dict[int, list[int]] = {}
        for (row, _, _), number in zip(ordered, numbers.tolist(), strict=True):
            rows.setdefault(number, []).append(row)
        found: dict[int, Picture] = {}
        block: Picture | None = None
        try:
            with closing(self._reader.frames(sorted(rows))) as frames:
                for place, (number, frame) in enumerate(frames):
                    if depth:
                        picture: Picture = grey16(frame)[np.newaxis]
                    else:
                        if block is None:
                            block = PICTURES.empty((len(rows), 3, *displayed(frame)), np.uint8)
                        picture = self._converter.rgb(frame, block[place])
                    found.update(dict.fromkeys(rows[number], picture))
        except BadVideo as error:
            raise BadVideo(f"{self._name}: {error}", error.kind) from error
        return found

    def _off(self, name: str, second: float, late_s: float, tolerance_s: float) -> BadVideo:
        times = self._reader.times
        last_s = times.second(len(times) - 1)
        if second > last_s + tolerance_s:
            what = f"{name} has a frame at {second:.3f} s, but {self._name} ends with its frame at {last_s:.3f} s"
            return BadVideo(f"{what}; the data set is damaged, so leave this episode out (episodes=...)", "truncated")
        return BadVideo(
            f"{name} has a frame at {second:.4f} s, and {self._name} shows none within {tolerance_s:g} s; the nearest "
            f"is {1000 * late_s:.3g} ms off, so a tolerance_s above {late_s:.2g} would take it"
        )


def grouped(moments: Iterable[tuple[str, bool, Moment]]) -> dict[tuple[str, bool], dict[int, Moment]]:
    """The moments by file, each row once."""
    found: dict[tuple[str, bool], dict[int, Moment]] = {}
    for key, depth, moment in moments:
        found.setdefault((key, depth), {})[moment[0]] = moment
    return found

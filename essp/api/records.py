"""`essp.Records`: records for a training loop of your own, read in random order from few large files.

    loader = essp.Records("data/cifar10", batch_size=32)
    for batch in loader:                        # one epoch
        step(batch.frames[:, 0], batch.labels)  # (B, H, W, C) uint8 and (B,) int64

A record is a clip of one frame. `Records` is iterated over, saved, resumed and divided among ranks like `essp.Loader`.
`essp records build` makes the data sets that it reads (docs/records.md).
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from essp.api.arguments import (
    Frames,
    Transform,
    bytes_of,
    device_of,
    function_of,
    grouped,
    path_of,
    rendezvous_of,
    sides_of,
    transformed,
    uri_of,
    whole_number,
)
from essp.api.epochs import Batch, Epochs, closed_when_abandoned, nothing
from essp.api.loader_arguments import RecordSampling, checked_group
from essp.api.shared import About, Owner, SharedRecords, Start
from essp.records.feed import Feed, Part, Taken
from essp.records.held import Held, Places, RawImages
from essp.records.images import covering
from essp.records.pieces import Meter, Pieces, Share
from essp_common.errors import BadFrames, ConfigError, PermanentError
from essp_common.job.position import Position
from essp_common.records.disk import Room
from essp_common.records.names import RecordNames
from essp_common.records.reader import RecordReader
from essp_common.records.sampler import Draws
from essp_common.records.versions import DataSet, digest
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.wiring import Stores
from essp_engine.loading.batch import alike

_AHEAD = 2
"""Batches whose images are decoded, scaled or transformed ahead."""
_SAMPLE = 4096
_MOST_SIDE = 2**15 - 1


class Records(Epochs):
    """The records of a data set in batches, for a training loop of your own. Each `for` over it is one epoch.

        loader = essp.Records("data/cifar10", batch_size=128)
        for epoch in range(10):
            for batch in loader:
                images = batch.frames[:, 0].to("cuda").permute(0, 3, 1, 2) / 255
                loss = step(images, batch.labels.to("cuda"))
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "checkpoint.pt")

    A record is a clip of one frame: `Batch.frames` is `(B, 1, H, W, C)`. States, ranks, `DataLoader` and frameworks: as
    with `Loader`.

    Records are read ahead of the loop in pieces, each in one pass over the files; if all of them fit into `memory`,
    each is read once. The order does not depend on that.

    A damaged record is left out, with a warning in the log; `damaged` lists them all. The records of a missing or
    damaged file are left out, too, and the others keep their places in the order. With several ranks, which must take
    the same number of steps, the record before it in its batch is repeated; if no record of a batch can be read, the
    batch before is repeated.
    """

    @grouped(sampling=RecordSampling)
    def __init__(
        self,
        uri: str | Path,
        *,
        size: int | tuple[int, int] | None = None,
        batch_size: int = 32,
        sampling: RecordSampling = RecordSampling(),
        transform: Transform | None = None,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
        memory: int | str = "1GiB",
        disk: int | str | None = None,
        disk_folder: str | Path | None = None,
        version: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Read the newest version and its tables; records are read when the first batch is requested.

        uri: path or URI, as given to `essp records build`.
        size: `(height, width)`, or the side of a square. Images are scaled to cover it, and then cropped at the centre.
            Required unless all images were stored as numbers of one size (`--encode raw`).
        batch_size: records of a batch of this rank; the last batch of an epoch may be smaller (see `drop_last`).
        sampling: which records are shown, and in which order.
        transform: called with each record `(1, H, W, C)`, which it must not modify, and a random generator that depends
            on seed, epoch and record only. The results are stacked, so they need the same shape and type. It runs in
            threads.
        drop_last: leave out the last batch of an epoch if it is smaller.
        device: device of `Batch.frames`.
        memory: bytes for records (`"4GiB"`); with more, there are fewer and longer passes over the files.
        disk: bytes of a local disk that keeps records that were read (`"100GiB"`), for data sets in an object store:
            later epochs, processes and training runs read only the others from the store. Default: none.
        disk_folder: the folder that keeps them; processes and data sets may share it, and `disk` limits its total size.
            Default: `essp-records-` and the user id, in the folder for temporary files.
        version: default: the newest one.
        rank, world_size: default: those of torch.distributed, or RANK and WORLD_SIZE.

        Raises `ConfigError`, whose `field` is the argument to change, and `NotFound` if there are no records.
        """
        self._arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__(rendezvous_of(rank, world_size), drop_last)
        checked_group("sampling", sampling, RecordSampling)
        self._size = None if size is None else sides_of("size", size, _MOST_SIDE)
        self._records_a_batch = whole_number("batch_size", batch_size, 1)
        self._transform = function_of("transform", transform)
        self._device = device_of(device)
        self._memory = bytes_of(memory)
        self._seed = sampling.seed
        self._uri = uri_of("uri", uri)
        self._share = Share(self._ranks.rank, self._ranks.world_size)
        self._reading: _Reading | None = None
        self._meter = Meter()
        self._open(None if version is None else whole_number("version", version, 1), _room_of(disk, disk_folder))
        sample = min(self._reader.version.records, sampling.sample_size or _SAMPLE)
        self._sample_size = sample if sampling.replacement else 0
        self._refuse_empty_epochs()

    def _open(self, version: int | None, room: Room | None) -> None:
        """Read the tables. Raises `ConfigError` if ranks or `size` do not fit the data set."""
        data_set = DataSet(Stores(Settings().stores).under(self._uri))
        self._reader = RecordReader(data_set, version, room)
        self._files = RecordNames(data_set, self._reader.version)
        if not self._clips:
            raise ConfigError(
                f"{self._uri} has {self._reader.version.records} records, too few for {self._ranks.world_size} ranks",
                field="world_size",
                code="range",
            )
        if self._size is None and self._reader.shape is None:
            raise ConfigError(
                "required, since the images are files or have several sizes; give one such as size=224",
                field="size",
                code="missing",
            )
        self._labels = self._reader.table["label"].astype(np.int64)
        self._keys = self._reader.table["key"].copy()
        self._names = np.array([*self._reader.classes, None], object)  # None is the name of label -1

    def share(self, *, processes: int, memory: int | str = "64MiB") -> SharedRecords:
        """This loader, shared by several processes of this machine: each batch goes to one of them. Linux only.

            with essp.Records("data/cifar10").share(processes=2) as shared:
                torch.multiprocessing.spawn(train, args=(model, shared), nprocs=2)

        It begins at the position of this loader. A thread of this process reads the records, once for all processes.
        The function of `map` is used, too: it is pickled for spawned processes, and processes that open an address do
        not get it.

        processes: number of processes that may take batches at a time; when one ends, another may join.
        memory: bytes of batches that wait in shared memory; two batches for each process are kept in any case.
        """
        loader = copy.copy(self)
        loader._map, loader._device = None, torch.device("cpu")

        def about(start: Start) -> About:
            device = str(self._device)
            rank, ranks = self._ranks.rank, self._ranks.world_size
            return About(self.classes, self._clips, len(self), rank, ranks, self._plan, device, start)

        shared = SharedRecords._of(Owner(loader, about, lambda: loader.damaged, processes, memory))
        return shared if self._map is None else shared.map(self._map)

    # --- properties ---

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them, and -1 for a record without one."""
        return self._reader.classes

    @property
    def version(self) -> int:
        """Version of the data set."""
        return self._reader.number

    def file(self, record: int) -> str:
        """The file from which a record was made: the path of its image below the source, followed by the part of an
        image or the frame of a video. Empty if the data set does not say. `record`: a number of `Batch.meta["record"]`.

        For example, to inspect or relabel the images with the highest loss:

            for record in batch.meta["record"]:
                print(loader.file(record))

        Raises `ConfigError` for a number that was never given to a record.
        """
        number = whole_number("record", record, 0)
        if number >= self._reader.version.next_key:
            raise ConfigError(
                f"there is no record {number}; the last one is {self._reader.version.next_key - 1}",
                field="record",
                code="range",
            )
        return self._files[number]

    @property
    def damaged(self) -> dict[str, str]:
        """Records and files that could not be read so far, and why."""
        return dict(self._reader.damaged)

    @property
    def reading(self) -> dict[str, float]:
        """The cost of reading so far, to see whether it slows down the loop.

        `pieces` and `records` that were read, with `store_bytes` from the store and `disk_bytes` from the disk, in
        `read_s` seconds. `stalled_s`: seconds for which the loop waited for records, without `first_s`, the wait for
        the first batches. `loop_s`: seconds between batches.
        """
        read = {"store_bytes": self._reader.store_bytes, "disk_bytes": self._reader.disk_bytes}
        return {**asdict(self._meter), **read}

    # --- internals ---

    def _take(self) -> Callable[[], None]:
        reading, self._reading = self._reading, None
        if reading is None:
            return nothing
        self._abandoned.detach()
        return reading.close

    @property
    def _clips(self) -> int:
        return self._share.size(self._reader.version.records)

    @property
    def _batch_size(self) -> int:
        return self._records_a_batch

    @cached_property
    def _plan(self) -> int:
        return crc32(f"{digest(self._reader.version)} {self._seed} {self._sample_size}".encode())

    def _epoch_from(self, start: Position | None) -> Iterator[tuple[Batch | None, int]]:
        assert start is not None
        reading = self._reading_at(start)
        shown = False
        for taken, frames in self._with_frames(reading):
            shown |= len(frames.places) > 0
            if self._drop_last and len(taken.places) < self._batch_size:
                continue  # the last one
            yield self._batch(start.phase_index, frames) if len(frames.places) else None, taken.stop
        if not shown and start.index == 0:
            raise PermanentError(f"no record of {self._uri} can be read; `essp records verify` says what is damaged")

    def _reading_at(self, start: Position) -> _Reading:
        at = (start.phase_index, start.index)
        reading = self._reading
        if reading is not None and reading.feed.position == at and reading.pid == os.getpid():
            return reading
        self._drop()
        return self._begin(lambda: self._read_from(at))

    def _read_from(self, at: tuple[int, int]) -> _Reading:
        draws = Draws(self._reader.version.records, self._seed, self._sample_size)
        pieces = Pieces(self._reader, draws, self._share, self._memory, self._batch_size, at, self._meter)
        feed = Feed(pieces, self._batch_size, self._clips, at)
        reading = self._reading = _Reading(feed, ThreadPoolExecutor(cpu_count(), "essp-images"), os.getpid())
        self._abandoned = closed_when_abandoned(self, reading.close)
        return reading

    def _with_frames(self, reading: _Reading) -> Iterator[tuple[Taken, _Frames]]:
        """The batches of the epoch with their frames. Where frames have to be decoded, scaled or transformed, threads
        do this ahead for the next batches."""
        if self._transform is None and self._size in (None, (self._reader.shape or ())[:2]):
            for taken in reading.feed.epoch():
                yield taken, self._shown(taken, taken.places >= 0, _as_they_are(taken)[:, None])
            return
        pending: deque[tuple[Taken, list[_Coming]]] = deque()
        for taken in reading.feed.epoch():
            pending.append((taken, self._making(taken, reading.pool)))
            if len(pending) > _AHEAD:
                yield self._made(*pending.popleft())
        while pending:
            yield self._made(*pending.popleft())

    def _making(self, taken: Taken, pool: ThreadPoolExecutor) -> list[_Coming]:
        view = _View(self._size, self._transform, self._seed, self.epoch, self._share)
        items = enumerate((part.held, place, index) for part in taken.parts for place, index in _items(part))
        return [_Coming(row, pool.submit(view, *item)) for row, item in items if item[1] >= 0]

    def _made(self, taken: Taken, coming: list[_Coming]) -> tuple[Taken, _Frames]:
        good = np.zeros(len(taken.places), np.bool_)
        frames = []
        for row, future in coming:
            image = future.result()
            if isinstance(image, str):
                self._reader.leave_out(int(taken.places[row]), image)
            else:
                good[row] = True
                frames.append(image)
        if frames:
            alike(frames)
        return taken, self._shown(taken, good, np.stack(frames) if frames else np.empty(0))

    def _shown(self, taken: Taken, good: NDArray[np.bool_], frames: Frames) -> _Frames:
        """The good records of a batch, which have these `frames`; with several ranks, repeated to the full number."""
        kept = np.flatnonzero(good)
        if self._share.ranks > 1 and 0 < len(kept) < len(good):
            kept = _nearest(good)
            frames = frames[(np.cumsum(good) - 1)[kept]]
        return _Frames(frames, taken.places[kept], taken.indices[kept])

    def _batch(self, epoch: int, shown: _Frames) -> Batch:
        labels = self._labels[shown.places]
        share = self._share
        meta: dict[str, list[Any]] = {
            "record": self._keys[shown.places].tolist(),
            "class_name": self._names[labels].tolist(),
            "epoch": [epoch] * len(labels),
            "index": (shown.indices if share.ranks == 1 else shown.indices * share.ranks + share.rank).tolist(),
        }
        frames = torch.from_numpy(shown.frames)
        if self._device.type == "cuda":
            frames = frames.pin_memory().to(self._device, non_blocking=True)
        return Batch(frames, torch.from_numpy(labels), meta)

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts its own threads."""
        state = {name: self.__dict__[name] for name in ("_epoch", "_clips_done", "_begun", "_resuming", "_map")}
        same = {"uri": self._uri, "version": self.version}  # also in another folder, and after another build
        return {"arguments": self._arguments | same, "state": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["arguments"])  # type: ignore[misc]
        self.__dict__.update(state["state"])


class _Reading(NamedTuple):
    """The threads that read the records of a loader and decode them."""

    feed: Feed
    pool: ThreadPoolExecutor
    """It has no threads before the first record has to be decoded."""
    pid: int

    def close(self) -> None:
        """Idempotent."""
        if self.pid == os.getpid():  # a fork does not have its threads
            self.feed.close()
            self.pool.shutdown(cancel_futures=True)


class _Coming(NamedTuple):
    """A record of a batch that is being decoded. The result is a text if it cannot be read: the reason."""

    row: int
    made: Future[Frames | str]


class _Frames(NamedTuple):
    """What the loop sees of a batch."""

    frames: Frames
    places: Places
    indices: Places


@dataclass(frozen=True, slots=True)
class _View:
    """Makes what the loop sees of a record. Runs in threads."""

    size: tuple[int, int] | None
    transform: Transform | None
    seed: int
    epoch: int
    share: Share

    def __call__(self, held: Held, place: int, index: int) -> Frames | str:
        """`(1, H, W, C)`, or the result of the transform; a text if the record cannot be read: the reason."""
        try:
            image = held.image(place)
            if self.size is not None:
                image = covering(image, *self.size)
        except BadFrames as error:
            return str(error)
        frames = np.ascontiguousarray(image)[None]
        if self.transform is None:
            return frames
        frames.flags.writeable = False  # it may be the cached record, which later epochs show again
        identity = (self.seed, self.epoch, index * self.share.ranks + self.share.rank)
        return transformed(self.transform, frames, np.random.default_rng(identity))


def _room_of(disk: int | str | None, folder: str | Path | None) -> Room | None:
    if disk is None:
        if folder is not None:
            raise ConfigError("only with disk, the bytes to keep there", field="disk_folder", code="conflict")
        return None
    default = os.path.join(gettempdir(), f"essp-records-{os.getuid()}")
    place = default if folder is None else os.path.expanduser(path_of("disk_folder", folder))
    return Room(os.path.abspath(place), bytes_of(disk, "disk"))


def _items(part: Part) -> Iterator[tuple[int, int]]:
    return zip(part.places.tolist(), part.indices.tolist(), strict=True)


def _as_they_are(taken: Taken) -> NDArray[np.uint8]:
    """`(B, H, W, C)`: raw images of one size, without damaged ones."""
    whole = ((part.held, part.places[part.places >= 0]) for part in taken.parts)
    images = [held.take(places) for held, places in whole if isinstance(held, RawImages)]
    return images[0] if len(images) == 1 else np.concatenate(images)


def _nearest(good: NDArray[np.bool_]) -> Places:
    """For each index, the nearest good index before it, or else the first good one."""
    before = np.maximum.accumulate(np.where(good, np.arange(len(good)), -1))
    return np.where(before < 0, int(good.argmax()), before)

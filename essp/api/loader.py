"""`essp.Loader`: clips for a training loop of one's own, straight from compressed video.

    loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4, size=224), batch_size=32)
    for batch in loader:                        # one epoch
        step(batch.frames, batch.labels)        # (B, T, H, W, C) uint8 and (B,) int64

A loader runs a job in this process (`essp/loops/`): child processes decode, and nothing is written but small files in a
temporary folder. Or it takes part in a job of a cluster (`Loader.connect`). Several loops may share one job, and with
it each decode. The clips of an epoch and their order are a function of the catalog and the arguments, so two integers
say where a loop is (`Loader.state_dict`).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from essp.api.loader_job import (
    ARGUMENTS,
    ARGUMENTS_OF_A_FILE,
    ENOUGH_BYTES,
    EPOCHS,
    NAME,
    data_of_split,
    names_of,
    own_source,
    params_of,
)
from essp.api.targets import TargetReader, Targets
from essp.job_file import read_job
from essp.loops.feed import Feed, FeedOptions
from essp.loops.source import ClusterSource, OwnSource, Source
from essp.uris import as_uri
from essp_common.catalog.table import ById, meta_of
from essp_common.errors import ConfigError, EsspError
from essp_common.job.spec import MOST_EPOCHS, ClipSpec, SamplingSpec
from essp_common.messages.ordered import Delivery, PhaseEnd
from essp_common.planning.position import Position
from essp_common.runtime.config import Settings
from essp_common.validation import suggested
from essp_trainer.config import Rendezvous
from essp_trainer.data.prefetch import Batch as PreparedBatch

Frames = NDArray[Any]
Transform = Callable[[Frames, np.random.Generator], Frames]


@dataclass(frozen=True, slots=True)
class Clip:
    """What a clip is: how many frames, how far apart, how large, in which colours.

    For example:

        essp.Clip(frames=16, stride=4, size=224)  # spans 61 frames of the video
    """

    frames: int = 16
    """Frames of a clip."""
    stride: int = 1
    """Distance between them, in frames of the video. A video shorter than a clip gives its last frame again."""
    size: int | tuple[int, int] = 224
    """Height and width in pixels, or the side of a square. A frame is scaled until it covers that, and its centre cut
    out."""
    pixels: Literal["rgb", "yuv420", "gray"] = "rgb"
    """How frames travel to the loop. `yuv420`: as in the video, half the bytes, and decoders scale them for a third of
    the cost; `Batch.frames` are RGB all the same, converted on the loader's device (with a `transform`, before it).
    `gray`: luma alone, for flow, or for frames with one channel."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Clips that a loop takes together: `frames`, `labels` and `meta`; its length is their number B.

    For example:

        batch = next(iter(loader))
        batch.frames.shape      # (B, T, H, W, C), uint8
        batch.labels            # (B,) int64, positions in loader.classes
        batch.meta["video"][0]  # what the catalog says of the first clip's video
        batch = batch.to("cuda")
    """

    frames: Tensor
    """`(B, T, H, W, C)` on the loader's device: uint8, RGB, as decoded, or one channel of grey levels
    (`Clip.pixels`); of other features `(B, T', H, W, C)`, uint8 for networks, and float32 for descriptors."""
    labels: Tensor
    """`(B,)` int64 on the CPU: class ids, positions in `Loader.classes`."""
    meta: dict[str, list[Any]]
    """B values each: `video` (its id), `uri`, `class_name`, `split` and `group` as in the catalog, `first_frame` and
    `last_frame` in the file, `epoch`, and `index`, that of the clip in its epoch. Then the further columns of the
    source that the catalog was built from, by their names (None where a video has no value; a column that is called
    like one of these has `source_` before its name)."""

    targets: Targets | None = None
    """Several labels, spans and values of the very frames of each clip, if the catalog has any."""

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str, **options: Any) -> Batch:
        """The batch with frames, labels and targets on `device`. `options`: those of `Tensor.to`."""
        targets = None if self.targets is None else self.targets.to(device, **options)
        frames, labels = self.frames.to(device, **options), self.labels.to(device, **options)
        return replace(self, frames=frames, labels=labels, targets=targets)


class Loader(IterableDataset[Batch]):
    """The clips of a catalog in batches, for a loop of one's own. Each `for` over it is one epoch, in a new order.

        loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4), batch_size=32)
        for epoch in range(10):
            for batch in loader:
                loss = step(batch.frames.to("cuda"), batch.labels.to("cuda"))
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "checkpoint.pt")

    `state_dict` is where the loop is: call it after the step, and the batch in hand counts as done. `load_state_dict`
    goes on there, in the middle of an epoch too, with the very clips that would have come. After a `break` the next
    `for` is the next epoch.

    On several ranks (`torchrun`, or any launcher that sets RANK and WORLD_SIZE) each process has a loader with the same
    arguments and gets its share of the clips; `batch_size` is that of one rank. A state may be loaded on another number
    of ranks.

    A loader is an `IterableDataset` of batches: give it to `DataLoader(loader, batch_size=None)` where a framework asks
    for one, with `num_workers=0`, since decoding has processes of its own.

    A video that cannot be decoded is replaced by another one of its class, and the log says so. Leaving the process, by
    Ctrl-C or an error too, ends what belongs to a loader; `close`, or a `with` block, ends it earlier.
    """

    def __init__(
        self,
        catalog: str | Path,
        *,
        split: str = "train",
        clip: Clip = Clip(),
        batch_size: int = 32,
        feature: str = "rgb",
        params: Mapping[str, Any] | None = None,
        seed: int = 0,
        transform: Transform | None = None,
        clips_per_epoch: int | None = None,
        clips_per_visit: int = 1,
        window: int | None = None,
        step: int | None = None,
        clips_per_video: int = 3,
        validation_fraction: float = 0.15,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
        decoders: int = 0,
        memory: int | str | None = None,
        dead_ratio: float = 0.2,
        loops: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Read the catalog and check the arguments; nothing is started before the first batch is asked for.

        catalog: path or URI, as `essp catalog build` wrote it.
        split: `train` is drawn from at random, class by class; of `validation` and `test` each epoch has
            `clips_per_video` clips of each video, at even distances. A catalog without a validation split gets one set
            aside from its training videos. Any other name is a split of the catalog to train on.
        clip: frames of a clip and their size; for `flow` of length L, frames = L + 1.
        batch_size: clips of a batch of this rank; the last one of an epoch may have fewer (see `drop_last`).
        feature, params: what to make of the clips (`essp.features()`; `essp extractor describe NAME`).
        seed: the same seed, the same clips in the same order.
        transform: called with each clip `(T, H, W, C)`, not to be written to, and a random generator that depends on
            seed, epoch and clip alone; what it returns is stacked. It runs in a thread.
        clips_per_epoch: default: as many as there are training videos; with `step`, as there are places.
        clips_per_visit: clips of each video that is drawn, which one decode makes, so that a clip costs less CPU.
            They are mixed with those of other videos within `window` clips (default: 64 videos), which have to fit
            into memory.
        step: draw nothing, but show each place that a clip can start at once in an epoch, `step` frames apart (1: at
            every frame); `clips_per_visit` neighbouring ones are made by one decode.
        clips_per_video: see `split`.
        validation_fraction: the share of the training videos that is set aside; 0: none is.
        drop_last: leave out the last batch of an epoch if it is smaller.
        device: where `Batch.frames` are to be; they are sent ahead of the loop, from pinned memory.
        decoders: child processes that decode; 0: one per CPU, shared by the ranks of this machine.
        memory: bytes for clips on the way (`"2GiB"`); default: what `batch_size` and `window` need.
        dead_ratio: if more than this share of the clips cannot be decoded, the loop gets an `EsspError` that names a
            video; 0: at the first one.
        loops: how many loops may share the clips and their decodes: this one, and those that `another` makes.
        rank, world_size: default: those of torch.distributed or of RANK and WORLD_SIZE.

        Raises `ConfigError`, which names the argument and the remedy.
        """
        ranks = _rendezvous(rank, world_size)
        visits: dict[str, Any] = {}
        if clips_per_visit != 1 or step is not None:
            visits = {
                "kind": "pooled" if step is None else "exhaustive",
                "step": 1 if step is None else step,
                "clips_per_visit": clips_per_visit,
                "window": 64 * clips_per_visit if window is None else window,
            }
        if window is not None and clips_per_visit == 1:
            raise ConfigError("window: only has a meaning with clips_per_visit; set that to 8")
        names = names_of(loops)
        words = {**ARGUMENTS, **{f"consumers.{name}.batch_size": "batch_size" for name in names}}
        height, width = (clip.size, clip.size) if isinstance(clip.size, int) else clip.size
        document = {
            "name": NAME,
            "output": as_uri(gettempdir()),
            "epochs": EPOCHS,
            "data": {"catalog": as_uri(str(catalog)), **data_of_split(split, validation_fraction)},
            "clip": {
                "frames": clip.frames,
                "stride": clip.stride,
                "pixels": clip.pixels,
                "resize": {"mode": "crop", "height": height, "width": width},
            },
            "sampling": {
                **visits,
                "seed": seed,
                "clips_per_epoch": clips_per_epoch,
                "clips_per_video": clips_per_video,
                "rank": ranks.rank,
                "ranks": ranks.world_size,
            },
            "streams": {NAME: {"feature": feature, "params": params_of(feature, params, clip.frames)}},
            "consumers": {name: {"stream": NAME, "batch_size": batch_size} for name in names},
            "limits": {"dead_ratio": dead_ratio, "budget": ENOUGH_BYTES if memory is None else memory},
        }
        source = own_source(document, words, ranks, decoders, bounded=memory is not None)
        self._set_up(source, source.add(self), ranks, transform, drop_last, device)

    @classmethod
    def of(
        cls,
        job: str | Path,
        stream: str | None = None,
        *,
        split: str = "train",
        batch_size: int | None = None,
        transform: Transform | None = None,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
        decoders: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Self:
        """A loader of the clips that the trainers of a job file get: its catalog, clips, sampling and limits.

        job: path of the file.
        stream: one of its `streams`; may be left out if there is one.
        batch_size: default: that of the trainer of the stream.

        The other arguments are those of `Loader`. Nothing of the job's `output` is read or written, and nothing is
        cropped, mirrored or normalised.
        """
        spec = read_job(Path(job))
        if stream is None and len(spec.streams) == 1:
            [stream] = spec.streams
        if stream not in spec.streams:
            raise ConfigError(f"stream: {job} has no stream {stream!r}; {suggested(stream or '', spec.streams)}")
        sizes = [trainer.batch_size for trainer in spec.trainers.values() if trainer.stream == stream]
        ranks = _rendezvous(rank, world_size)
        sampling = spec.sampling.model_dump() | {"rank": ranks.rank, "ranks": ranks.world_size}
        document = {
            "name": NAME,
            "output": as_uri(gettempdir()),
            "epochs": EPOCHS,
            "data": spec.data.model_dump() | {"consumed": split},
            "clip": spec.clip.model_dump(),
            "sampling": sampling,
            "streams": {NAME: spec.streams[stream].model_dump()},
            "consumers": {
                NAME: {"stream": NAME, "batch_size": max(sizes, default=32) if batch_size is None else batch_size}
            },
            "limits": spec.limits.model_dump(),
        }
        loader = cls.__new__(cls)
        words = ARGUMENTS_OF_A_FILE | {f"streams.{NAME}.": f"streams.{stream}."}
        source = own_source(document, words, ranks, decoders, bounded=True)
        loader._set_up(source, source.add(loader), ranks, transform, drop_last, device)
        return loader

    @classmethod
    def connect(
        cls,
        job: str,
        consumer: str | None = None,
        *,
        transform: Transform | None = None,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
        bus: str | None = None,
        cache: str | None = None,
    ) -> Self:
        """A loader that takes part in a job of a cluster, as one of the `consumers` of its file.

        Its first epoch is the next one that the job begins. If a state is loaded, or `set_epoch` says otherwise, what
        was issued before then is decoded again for this loop; the others do not wait for it.

        job: its name. consumer: one of its `consumers`; may be left out if there is one. One process at a time has that
        name: a later one replaces it. bus, cache: URLs; default: ESSP_BUS and ESSP_CACHE. ESSP_STORES names the stores
        that hold catalog and output. The other arguments are those of `Loader`.

        Raises `ConfigError` for a job that is not there or has no such consumer, and `EsspError` for one that has
        ended.
        """
        urls = {name: url for name, url in (("bus", bus), ("cache", cache)) if url is not None}
        ranks = _rendezvous(None, None)
        if ranks.world_size > 1:
            raise ConfigError(
                "rank: one process takes part under one name; name a consumer for each rank, each of which gets all "
                "clips, or use essp.Loader(...), which gives each rank its share"
            )
        source = ClusterSource(job, Settings(**urls))
        loader = cls.__new__(cls)
        loader._set_up(source, source.name_of(consumer), ranks, transform, drop_last, device)
        loader._late = True
        return loader

    def another(self) -> Self:
        """Another loop over the same clips, with the same arguments: each clip is decoded once for all of them.

        Each goes at its own pace, in a thread of its own or in turn, and has its own epochs and states. Those that are
        made before the first batch begin together. One that is made later begins with the epoch that this one is in:
        what it has missed is decoded again for it (`set_epoch` has it begin later). One that is much slower than the
        others does not hold them up.

        Raises `ConfigError` if there are as many as `loops` says.
        """
        if not isinstance(self._source, OwnSource):
            raise ConfigError("another: a connected loader is one consumer of its job; connect once for each of them")
        other = type(self).__new__(type(self))
        other._set_up(
            self._source, self._source.add(other), self._ranks, self._transform, self._drop_last, self._device
        )
        other._epoch = self._epoch
        return other

    def _set_up(
        self,
        source: Source,
        consumer: str,
        ranks: Rendezvous,
        transform: Transform | None,
        drop_last: bool,
        device: str | torch.device,
    ) -> None:
        self._source = source
        self._consumer = consumer
        self._ranks = ranks
        self._transform = transform
        self._drop_last = drop_last
        self._device = _device(device)
        self._late = False
        """It begins with the next pass of a job that runs, whichever that is."""
        self._epoch = 0
        self._clips_done = 0
        """Of the epoch, by all ranks."""
        self._begun = False
        """An iteration over the present epoch has begun, so the next one is for the next epoch."""
        self._resuming = False
        """A state was loaded, and nothing has been shown since."""
        self._map: Callable[[Batch], Any] | None = None
        self._feed: Feed | None = None
        self._iteration = 0

    # --- what it has ---

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is a position in them."""
        return tuple(self._source.classes)

    @property
    def target_names(self) -> tuple[str, ...]:
        """What the last axis of `Batch.targets.labels` and `.frame_labels` stands for: all classes, labels and names of
        spans of the catalog, sorted; the same for every split."""
        return self._targets.names

    @property
    def clip(self) -> ClipSpec:
        """Frames, stride and size: `essp.decode(row, first_frame, clip=loader.clip)` gives the frames of a clip."""
        return self._source.spec.clip

    @property
    def epoch(self) -> int:
        """The epoch that the next `for` shows, or that is being shown; from 0."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of an epoch, of this rank."""
        return self._clips // self._batch_size if self._drop_last else -(-self._clips // self._batch_size)

    # --- iterating ---

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or what is left of the one whose state was loaded."""
        if get_worker_info() is not None:
            raise ConfigError("a loader cannot be used in worker processes; give DataLoader num_workers=0")
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        # An epoch begins with its first batch: frameworks make iterators that they never ask for one.
        if self._begun:
            self._epoch, self._clips_done = self._epoch + 1, 0
        self._begun, self._resuming = True, False
        self._iteration += 1
        iteration = self._iteration
        feed = self._feed_at(self.position())
        whole = False
        try:
            while not isinstance(item := feed.next(), PhaseEnd):
                if item is None:
                    raise EsspError(f"the job has {self._source.spec.epochs} epochs, and all of them are over")
                self._clips_done = item.stop * self._ranks.world_size
                if item.input is not None and not (self._drop_last and item.stop - item.begin < self._batch_size):
                    batch = self._batch(item)
                    yield batch if self._map is None else self._map(batch)
                    if iteration != self._iteration:
                        raise RuntimeError("another iteration over this loader has begun; one at a time")
            whole = True
            if iteration == self._iteration:
                self._epoch, self._clips_done, self._begun = self._epoch + 1, 0, False
        finally:
            if not whole and iteration == self._iteration:
                self.close()

    def map(self, function: Callable[[Batch], Any]) -> Self:
        """Have each `for` give `function(batch)` in place of the batch, and return this loader.

        For frameworks that want dictionaries: `loader.map(lambda batch: {"pixel_values": batch.frames, "labels":
        batch.labels})`. It runs in the thread of the loop, so what takes long is better done by `transform`.
        """
        self._map = function
        return self

    def position(self) -> Position | None:
        """Where the next batch of this rank begins: epoch and clip; None: with the next epoch of a job that runs."""
        return None if self._late else Position(self._epoch, self._clips_done // self._ranks.world_size)

    def set_epoch(self, epoch: int) -> None:
        """Have the next `for` show this epoch, from its beginning, unless it is the present one anyway.

        Raises `ConfigError` where that would lose the place of a state that was just loaded.
        """
        if not 0 <= epoch < MOST_EPOCHS:
            raise ConfigError(f"epoch: {epoch} is none of 0 to {MOST_EPOCHS - 1}")
        if self._resuming and epoch != self._epoch:
            raise ConfigError(
                f"epoch: set_epoch({epoch}) would lose the state that was loaded, which goes on in epoch "
                f"{self._epoch}; accelerate sets the epoch of a DataLoader that it has prepared, so give it the loader "
                "itself"
            )
        if epoch != self._epoch or self._begun or self._late:
            self._late = False
            self._epoch, self._clips_done, self._begun = epoch, 0, False

    @property
    def batch_sampler(self) -> _BatchSampler:
        """Lightning tells the epoch to the `batch_sampler.sampler` of what it iterates over: that is the loader."""
        return _BatchSampler(self)

    def close(self) -> None:
        """End the processes and threads of this loader, but for those that it shares. It can be iterated over again.
        Idempotent."""
        self._source.leave(self._consumer)
        feed, self._feed = self._feed, None
        if feed is not None:
            self._abandoned.detach()
            feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- where it is ---

    def state_dict(self) -> dict[str, int]:
        """Where the loop is, the batch in hand included: two integers, and one that says of which plan they are.

        `epoch`: counts from 0. `clip`: how many clips of that epoch all ranks have taken; every rank has the same
        state.
        """
        return {"epoch": self._epoch, "clip": self._clips_done, "plan": self._plan}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken, on this or another number of ranks; after the last batch of an epoch, with the
        next epoch.

        Raises `ConfigError` for the state of a loader whose clips are not the same ones.
        """
        try:
            epoch, clip, plan = (int(state[name]) for name in ("epoch", "clip", "plan"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"state: {state!r} is no state of a loader") from error
        if plan != self._plan:
            raise ConfigError(
                "state: it is of other clips; catalog, split, clip, seed and sampling have to be those that it was "
                "taken with"
            )
        if not 0 <= epoch < MOST_EPOCHS or not 0 <= clip <= len(self) * self._batch_size * self._ranks.world_size:
            raise ConfigError(f"state: there is no clip {clip} of epoch {epoch}")
        if clip % self._ranks.world_size:
            raise ConfigError(
                f"state: {clip} clips are done, which {self._ranks.world_size} ranks cannot share; use a number of "
                "ranks that divides it"
            )
        left = self._clips - clip // self._ranks.world_size
        if left < (self._batch_size if self._drop_last else 1):
            epoch, clip = epoch + 1, 0
        self.close()
        self._epoch, self._clips_done, self._begun, self._resuming = epoch, clip, False, True
        self._late = False

    # --- how it does that ---

    @property
    def _clips(self) -> int:
        """Of an epoch, of this rank."""
        return self._source.phases.plans[0].clips

    @property
    def _batch_size(self) -> int:
        return self._source.spec.consumers[self._consumer].batch_size

    @cached_property
    def _plan(self) -> int:
        return self._source.phases.digest()

    @cached_property
    def _videos(self) -> ById:
        return ById(self._source.phases.view(0).rows)

    @cached_property
    def _targets(self) -> TargetReader:
        return TargetReader(self._source.phases.view(0).rows, self.clip.frames, self.clip.stride)

    def _feed_at(self, start: Position | None) -> Feed:
        feed = self._feed
        if feed is not None:
            goes_on = feed.pid == os.getpid() and feed.position == start
            if goes_on and feed.position.phase_index < self._source.spec.epochs:
                return feed
            self.close()
        view = _View(self._transform, self._source.spec.sampling)
        on_device = self._transform is None and self._device.type != "cpu"
        job, membership = self._source.join(self._consumer, start)
        options = FeedOptions(self._consumer, view, self._device, convert=not on_device)
        self._feed = feed = Feed(job, membership, options)
        if self._late:
            self._epoch, self._late = feed.position.phase_index, False
        self._abandoned = weakref.finalize(self, _close_in_a_thread, feed)
        self._abandoned.atexit = False  # at the end of the process the feed closes itself
        return feed

    def _batch(self, prepared: PreparedBatch) -> Batch:
        if prepared.input is None:
            raise ValueError("a batch without clips")
        items = prepared.clips
        rows = self._source.phases.view(0).rows
        places = [self._videos.place(item.clip.video_id) for item in items]
        meta: dict[str, list[Any]] = {
            "video": [item.clip.video_id for item in items],
            **{name: [rows.text(name, place) for place in places] for name in ("uri", "class_name", "split", "group")},
            "first_frame": [item.clip.first_frame for item in items],
            "last_frame": [item.clip.last_frame for item in items],
            "epoch": [item.clip.epoch for item in items],
            "index": [_index_of(item, self._source.spec.sampling) for item in items],
        }
        further = [meta_of(rows.text("id", place), rows.text("extra", place)) for place in places]
        for name in sorted({name for columns in further for name in columns}):
            meta[f"source_{name}" if name in meta else name] = [columns.get(name) for columns in further]
        targets = self._targets.of(places, meta["first_frame"]) if self._targets.any else None
        return Batch(prepared.input.here(), torch.from_numpy(prepared.labels()), meta, targets)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, for another process, starts processes of its own."""
        made = ("_videos", "_targets", "_abandoned")
        own = {name: value for name, value in self.__dict__.items() if name not in made}
        return own | {"_feed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._source, OwnSource):
            self._consumer = self._source.add(self)


class _BatchSampler(NamedTuple):
    sampler: Loader


@dataclass(frozen=True, slots=True)
class _View:
    """What the loop sees of a clip. Does not know the loader, which would live as long as its feed otherwise."""

    transform: Transform | None
    sampling: SamplingSpec

    def __call__(self, item: Delivery, frames: Frames) -> Frames:
        if self.transform is None:
            return frames
        identity = (self.sampling.seed, item.clip.epoch, _index_of(item, self.sampling))
        return self.transform(frames, np.random.default_rng(identity))


def _index_of(item: Delivery, sampling: SamplingSpec) -> int:
    """Of a clip, in the epoch of all ranks."""
    return item.clip.index * sampling.ranks + sampling.rank


def _rendezvous(rank: int | None, world_size: int | None) -> Rendezvous:
    """Which of how many ranks this process is."""
    found = Rendezvous.of_environment()
    distributed = torch.distributed
    if rank is None and world_size is None:
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            return found
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ConfigError(f"rank: {rank} is none of {world_size} ranks; give both, and count from 0")
    return found.model_copy(update={"rank": rank, "world_size": world_size})


def _device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {name!r} is none; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: batches cannot be sent to {device} ahead; use cpu, and `batch.to({str(device)!r})`")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; use cpu, or install torch for CUDA")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: there is no {device} here; GPUs: {torch.cuda.device_count()}, counted from 0")
    return device


def _close_in_a_thread(feed: Feed) -> None:
    """The garbage collector may run in a thread that `close` waits for."""
    threading.Thread(target=feed.close, name="essp-loader-close", daemon=True).start()

"""`essp.Loader`: clips for a training loop of one's own, straight from compressed video.

    loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4, size=224), batch_size=32)
    for batch in loader:                        # one epoch
        step(batch.frames, batch.labels)        # (B, T, H, W, C) uint8 and (B,) int64

A loader runs a job (`essp/loops/`), in this process, or for a GPU in one of its own: child processes decode, and
nothing is written but small files in a temporary folder. Or it takes part in a job of a cluster (`Loader.connect`).
Several loops may share one job, and with it each decode. The clips of an epoch and their order are a function of the
catalog and the arguments, so two integers say where a loop is (`Loader.state_dict`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import ValidationError

from essp.api.arguments import (
    Transform,
    device_of,
    function_of,
    mapping_of,
    name_of,
    on_this_gpu,
    path_of,
    plain,
    rendezvous_of,
    sides_of,
    transformed,
    uri_of,
    whole_number,
)
from essp.api.epochs import Batch, Epochs, closed_when_abandoned, nothing
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
    unused_output,
    visits_of,
)
from essp.api.targets import TargetReader
from essp.job_file import read_job
from essp.loops.clips import Clips, JobClips
from essp.loops.clips_process import ClipsProcess
from essp.loops.feed import Feed
from essp.loops.source import ClusterSource, OwnSource, Source
from essp_common.catalog.rows import ById, meta_of
from essp_common.errors import ConfigError, EsspError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipRef
from essp_common.runtime.config import Settings
from essp_common.runtime.forks import Mutex
from essp_common.validation import problems, shown, suggested
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.loading.batch import Batch as PreparedBatch
from essp_engine.loading.batch import Seen, as_pictures, as_stored
from essp_engine.loading.rendezvous import Rendezvous

_MOST_SIDE = 7680
_MOST_DELTA_S = 10**6


@dataclass(frozen=True, slots=True)
class Clip:
    """What a clip is: how many frames, how far apart, how large, in which colours.

    frames: frames of a clip.
    stride: distance between them, in frames of the video. A video shorter than a clip gives its last frame again.
    size: height and width in pixels, or the side of a square. A frame is scaled until it covers that, and its centre
        cut out.
    pixels: how frames travel to the loop. `yuv420`: as in the video, half the bytes, and decoders scale them for a
        third of the cost; `Batch.frames` are RGB all the same, converted on the loader's device (with a `transform`,
        before it). `gray`: luma alone, for flow, or for frames with one channel.
    part: which part of each video clips are from: `(0.25, 0.75)` is its middle half.
    snippets: in how many pieces the frames are: `frames / snippets` of each of so many equal parts of the video, and
        features of each piece by itself (TSN). Such clips have no `Batch.targets`, and their `first_frame` is that of
        the first.

    For example:

        essp.Clip(frames=16, stride=4, size=224)  # spans 61 frames of the video
    """

    frames: int = 16
    stride: int = 1
    size: int | tuple[int, int] = 224
    pixels: Literal["rgb", "yuv420", "gray"] = "rgb"
    part: tuple[float, float] = (0.0, 1.0)
    snippets: int = 1

    def __post_init__(self) -> None:
        """Raises `ConfigError`, which names the field."""
        self._job_section()

    def _job_section(self) -> dict[str, Any]:
        """The `clip` of a job."""
        height, width = sides_of("clip.size", self.size, _MOST_SIDE)
        section = {
            "frames": whole_number("clip.frames", self.frames, 1),
            "stride": self.stride,
            "pixels": self.pixels,
            "snippets": whole_number("clip.snippets", self.snippets, 1),
            "part": self.part,
            "resize": {"mode": "crop", "height": height, "width": width},
        }
        try:
            ClipSpec.model_validate(section)
        except ValidationError as error:
            raise ConfigError("; ".join(f"clip.{problem}" for problem in problems(error, ClipSpec))) from error
        return section


class Loader(Epochs):
    """The clips of a catalog in batches, for a loop of one's own. Each `for` over it is one epoch, in a new order.

        loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4), batch_size=32)
        for epoch in range(10):
            for batch in loader:
                loss = step(batch.frames.to("cuda"), batch.labels.to("cuda"))
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "checkpoint.pt")

    `state_dict` is where the loop is: call it after the step, and the batch in hand counts as done. `load_state_dict`
    goes on there, in the middle of an epoch too, with the very clips that would have come. After a `break` the next
    `for` is the next epoch. One iteration at a time: once another one has begun, or the loader was closed or set to
    another place, the first one ends with a `ConfigError`.

    On several ranks (`torchrun`, or any launcher that sets RANK and WORLD_SIZE) each process has a loader with the same
    arguments and gets its share of the clips; `batch_size` is that of one rank. A state may be loaded on another number
    of ranks and with another `batch_size`.

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
        epochs: int | None = None,
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
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
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
            seed, epoch and clip alone; what it returns is stacked, so it has one shape and type. It runs in a thread.
        epochs: how many you will take, if you know: then nothing beyond the last one is decoded ahead. A loop that goes
            on all the same waits a moment while decoding starts again; one that shares its decodes gets an error.
        clips_per_epoch: default: as many as there are training videos; with `step`, as there are places.
        clips_per_visit: clips of each video that is drawn, which one decode makes, so that a clip costs less CPU.
            They are mixed with those of other videos within `window` clips (default: 64 videos), which have to fit
            into memory.
        step: draw nothing, but show each place that a clip can start at once in an epoch, `step` frames apart (1: at
            every frame); `clips_per_visit` neighbouring ones are made by one decode, which costs least with as many as
            start in one or more groups of pictures.
        clips_per_video: see `split`.
        validation_fraction: the share of the training videos that is set aside; 0: none is.
        drop_last: leave out the last batch of an epoch if it is smaller.
        device: where `Batch.frames` are to be; they are sent ahead of the loop, from pinned memory. For a GPU,
            without `transform` and with one loop, batches are prepared in a process of their own, so that the loop need
            not share Python's interpreter; four of them lie in memory that both have, beside `memory`.
        decoders: child processes that decode; 0: one per CPU, shared by the ranks of this machine.
        memory: bytes for clips on the way (`"2GiB"`); default: what `batch_size` and `window` need.
        dead_ratio: if more than this share of the clips cannot be decoded, the loop gets an `EsspError` that names a
            video; 0: at the first one.
        delta_timestamps: of series of the catalog: at which seconds, counted from a clip's last frame, to take the
            values, such as `{"action": [0, 0.1, 0.2]}`; `Batch.targets` then has those, and which of them lie outside
            the video. Default: the values at the clip's own frames.
        loops: how many loops may share the clips and their decodes: this one, and those that `another` makes.
        rank, world_size: default: those of torch.distributed or of RANK and WORLD_SIZE.

        Raises `ConfigError`, which names the argument and the remedy.
        """
        if not isinstance(clip, Clip):
            raise ConfigError(f"clip: {shown(clip)} is no essp.Clip")
        geometry = clip._job_section()
        deltas = _deltas_of(delta_timestamps)
        if deltas and geometry["snippets"] > 1:
            raise ConfigError("delta_timestamps: clips in snippets have no targets; leave it out, or use snippets=1")
        snippet_frames = geometry["frames"] // geometry["snippets"]
        ranks = rendezvous_of(rank, world_size)
        names = names_of(loops)
        words = {**ARGUMENTS, **{f"consumers.{name}.batch_size": "batch_size" for name in names}}
        document = {
            "name": NAME,
            "output": unused_output(),
            "epochs": EPOCHS if epochs is None else epochs,
            "data": {
                "catalog": uri_of("catalog", catalog),
                **data_of_split(name_of("split", split), validation_fraction),
            },
            "clip": geometry,
            "sampling": {
                **visits_of(clips_per_visit, step, window),
                "seed": seed,
                "clips_per_epoch": clips_per_epoch,
                "clips_per_video": clips_per_video,
                "rank": ranks.rank,
                "ranks": ranks.world_size,
            },
            "streams": {NAME: {"feature": feature, "params": params_of(feature, params, snippet_frames)}},
            "consumers": {name: {"stream": NAME, "batch_size": batch_size} for name in names},
            "limits": {"dead_ratio": dead_ratio, "budget": ENOUGH_BYTES if memory is None else memory},
        }
        source = own_source(document, words, ranks, decoders, bounded=memory is not None)
        self._set_up(source, source.add(self), ranks, transform, drop_last, device, deltas)
        self._targets.check()

    @classmethod
    def of(
        cls,
        job: str | Path,
        stream: str | None = None,
        *,
        split: str = "train",
        epochs: int | None = None,
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
        spec = read_job(Path(os.path.expanduser(path_of("job", job))))
        if stream is None and len(spec.streams) == 1:
            [stream] = spec.streams
        if (stream := name_of("stream", "" if stream is None else stream)) not in spec.streams:
            raise ConfigError(f"stream: {job} has no stream {stream!r}; {suggested(stream, spec.streams)}")
        sizes = [trainer.batch_size for trainer in spec.trainers.values() if trainer.stream == stream]
        ranks = rendezvous_of(rank, world_size)
        sampling = spec.sampling.model_dump() | {"rank": ranks.rank, "ranks": ranks.world_size}
        document = {
            "name": NAME,
            "output": unused_output(),
            "epochs": EPOCHS if epochs is None else epochs,
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
        words = ARGUMENTS_OF_A_FILE | {f"streams.{NAME}{end}": f"streams.{stream}{end}" for end in (".", ": ")}
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
        urls = {name: name_of(name, url) for name, url in (("bus", bus), ("cache", cache)) if url is not None}
        ranks = rendezvous_of(None, None)
        if ranks.world_size > 1:
            raise ConfigError(
                "rank: one process takes part under one name; name a consumer for each rank, each of which gets all "
                "clips, or use essp.Loader(...), which gives each rank its share"
            )
        source = ClusterSource(name_of("job", job), Settings(**urls))
        loader = cls.__new__(cls)
        loader._set_up(
            source,
            source.name_of(None if consumer is None else name_of("consumer", consumer)),
            ranks,
            transform,
            drop_last,
            device,
        )
        loader._late = True
        return loader

    def __repr__(self) -> str:
        spec, clip = self._source.spec, self.clip
        feature = spec.streams[spec.consumers[self._consumer].stream].feature
        size = f"{clip.resize.height} x {clip.resize.width}"
        return (
            f"<Loader of {self._clips:,} clips an epoch in batches of {self._batch_size}; {feature}, "
            f"{clip.frames} frames of {size}, stride {clip.stride}; {len(self.classes)} classes>"
        )

    def another(self) -> Self:
        """Another loop over the same clips, with the same arguments and `map`; each clip is decoded once for all.

        Each goes at its own pace, in a thread of its own or in turn, and has its own epochs and states. Those that are
        made before the first batch begin together. One that is made later begins with the epoch that this one is in:
        what it has missed is decoded again for it (`set_epoch` has it begin later). One that is much slower than the
        others does not hold them up.

        Raises `ConfigError` if there are as many as `loops` says.
        """
        if not isinstance(self._source, OwnSource):
            raise ConfigError("another: a connected loader is one consumer of its job; connect once for each of them")
        other = type(self).__new__(type(self))
        name = self._source.add(other)
        options = (self._ranks, self._transform, self._drop_last, self._device, self._deltas)
        other._set_up(self._source, name, *options)
        other._epoch, other._map = self._epoch, self._map
        return other

    def _set_up(
        self,
        source: Source,
        consumer: str,
        ranks: Rendezvous,
        transform: Transform | None,
        drop_last: bool,
        device: str | torch.device,
        deltas: Mapping[str, tuple[float, ...]] | None = None,
    ) -> None:
        Epochs.__init__(self, ranks, drop_last)
        self._source = source
        self._consumer = consumer
        self._transform = function_of("transform", transform)
        self._device = device_of(device)
        self._feed: Feed | None = None
        self._deltas = deltas or {}
        """Of series: at which seconds from a clip's last frame their values are taken."""
        self._refuse_empty_epochs()

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
        """Frames, stride and size: `essp.decode(row, first_frame - row.first_frame, clip=loader.clip)` gives the frames
        of a clip. `Batch.meta` counts `first_frame` in the file, and `essp.decode` from the row's first."""
        return self._source.spec.clip

    # --- how it does that ---

    def _take(self) -> Callable[[], None]:
        self._source.leave(self._consumer)
        feed, self._feed = self._feed, None
        if feed is None:
            return nothing
        self._abandoned.detach()
        return feed.close

    @property
    def _clips(self) -> int:
        return self._source.phases.plans[0].clips

    @property
    def _batch_size(self) -> int:
        return self._source.spec.consumers[self._consumer].batch_size

    @cached_property
    def _plan(self) -> int:
        return self._source.phases.digest()

    @property
    def _keeps_step(self) -> bool:
        return super()._keeps_step and self._source.phases.plans[0].purpose == TRAIN  # else shares differ

    @cached_property
    def _videos(self) -> ById:
        return ById(self._source.phases.view(0).rows)

    @cached_property
    def _further(self) -> tuple[str, ...]:
        return self._source.phases.view(0).rows.further_names()

    @cached_property
    def _targets(self) -> TargetReader:
        return TargetReader(self._source.phases.view(0).rows, self.clip.frames, self.clip.stride, self._deltas)

    def _epoch_from(self, start: Position | None) -> Iterator[tuple[Batch | None, int]]:
        feed = self._feed_at(start)
        while not isinstance(item := feed.next(), PhaseEnd):
            if item is None:
                epochs = self._source.spec.epochs
                if start is None:
                    raise EsspError(
                        f"all {epochs} epochs of the job had begun before this loop came, and a loop begins with the "
                        "next one; have it begin earlier with the state that it saved, or `set_epoch`"
                    )
                raise EsspError(f"the job has {epochs} epochs, and all of them are over")
            if self._drop_last and item.stop - item.begin < self._batch_size:
                continue  # the last one
            yield None if item.input is None else self._batch(item), item.stop

    def _feed_at(self, start: Position | None) -> Feed:
        feed = self._feed
        if feed is not None:
            goes_on = feed.pid == os.getpid() and feed.position == start
            if goes_on and feed.position.phase_index < self._source.spec.epochs:
                return feed
            self._drop()
        device = on_this_gpu(self._device)
        feed = self._begin(lambda: self._start_feed(start, device))
        if self._late:
            self._epoch, self._late = feed.position.phase_index, False
        return feed

    def _start_feed(self, start: Position | None, device: torch.device) -> Feed:
        feed = self._feed = Feed(self._clips_from(start), device, self._consumer)
        self._abandoned = closed_when_abandoned(self, feed.close)  # at the process's end the feed closes itself
        return feed

    def _clips_from(self, start: Position | None) -> Clips:
        source = self._source
        if start is not None and isinstance(source, OwnSource) and self._leaves_interpreter():
            source.reach(start)
            return ClipsProcess(source, self._consumer, start)
        transform = None if self._transform is None else _Transform(self._transform, source.spec.sampling)
        view = as_stored if transform is None and self._device.type == "cuda" else as_pictures
        return JobClips(*source.join(self._consumer, start), self._consumer, view, transform)

    def _leaves_interpreter(self) -> bool:
        """Whether the job is left to another process: a GPU's kernels are launched here. Loops that share clips, and
        transforms, need them in this one."""
        return self._device.type == "cuda" and self._transform is None and len(self._source.spec.consumers) == 1

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
            "index": [_index_of(item.clip, self._source.spec.sampling) for item in items],
        }
        further = [meta_of(rows.text("id", place), rows.text("extra", place)) for place in places]
        for name in self._further:
            meta[f"source_{name}" if name in meta else name] = [columns.get(name) for columns in further]
        has_targets = self.clip.snippets == 1 and self._targets.any
        targets = self._targets.of(places, meta["first_frame"]) if has_targets else None
        return Batch(prepared.input.here(), torch.from_numpy(prepared.labels()), meta, targets)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, for another process, starts processes of its own."""
        made = ("_videos", "_further", "_targets", "_abandoned", "_changing")
        own = {name: value for name, value in self.__dict__.items() if name not in made}
        return own | {"_feed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._changing = Mutex(reentrant=True)
        if isinstance(self._source, OwnSource):
            self._consumer = self._source.add(self)


@dataclass(frozen=True, slots=True)
class _Transform:
    """The user's transform. Does not know the loader, which would live as long as its feed otherwise."""

    transform: Transform
    sampling: SamplingSpec

    def __call__(self, clip: ClipRef, seen: Seen) -> Seen:
        identity = (self.sampling.seed, clip.epoch, _index_of(clip, self.sampling))
        return Seen(transformed(self.transform, seen.frames, np.random.default_rng(identity)))


def _deltas_of(given: Mapping[str, Sequence[float]] | None) -> dict[str, tuple[float, ...]]:
    named = {} if given is None else mapping_of("delta_timestamps", given)
    try:
        deltas = {name: tuple(map(float, plain(seconds))) for name, seconds in named.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"delta_timestamps: {shown(given)}: give a list of seconds for each name") from error
    if any(not abs(second) <= _MOST_DELTA_S for seconds in deltas.values() for second in seconds):
        raise ConfigError(f"delta_timestamps: {shown(given)}: the seconds have to be {_MOST_DELTA_S} or less")
    return deltas


def _index_of(clip: ClipRef, sampling: SamplingSpec) -> int:
    """Of a clip, in the epoch of all ranks."""
    return clip.index * sampling.ranks + sampling.rank

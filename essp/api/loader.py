"""`essp.Loader`: clips for a training loop of your own, decoded from compressed video.

    loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4, size=224), batch_size=32)
    for batch in loader:                        # one epoch
        step(batch.frames, batch.labels)        # (B, T, H, W, C) uint8 and (B,) int64

A loader runs a job (`essp/loops/`) in this process, or for a GPU in a process of its own. Child processes decode, and
only small files are written, to a temporary folder. `Loader.connect` takes part in a job of a cluster instead. Several
loops may share one job, and thus each decode. The clips of an epoch and their order depend on the catalog and the
arguments only, so two integers describe the position of a loop (`Loader.state_dict`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from essp.api.arguments import (
    Transform,
    device_of,
    function_of,
    grouped,
    mapping_of,
    name_of,
    on_this_gpu,
    path_of,
    plain,
    rendezvous_of,
    transformed,
    uri_of,
    whole_number,
)
from essp.api.epochs import Batch, Epochs, closed_when_abandoned, nothing
from essp.api.loader_arguments import Clip, Limits, Sampling, checked_group
from essp.api.loader_job import (
    data_of_split,
    document_of,
    names_for_a_file,
    names_for_arguments,
    own_source,
    params_of,
)
from essp.api.targets import TargetReader
from essp.job_file import read_job
from essp.loops.clips import Clips, JobClips
from essp.loops.clips_process import ClipsProcess
from essp.loops.feed import Feed
from essp.loops.source import ClusterSource, OwnSource, Source
from essp_common.catalog.rows import ById, meta_of
from essp_common.errors import ConfigCode, ConfigError, EsspError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipRef
from essp_common.runtime.config import Settings
from essp_common.runtime.forks import Mutex
from essp_common.validation import shown, suggested
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.loading.batch import Batch as PreparedBatch
from essp_engine.loading.batch import Seen, as_pictures, as_stored
from essp_engine.loading.rendezvous import Rendezvous

_BATCH_SIZE = 32
_MOST_DELTA_S = 10**6


class Loader(Epochs):
    """The clips of a catalog in batches, for a training loop of your own. Each `for` over it is one epoch.

        loader = essp.Loader("catalog.parquet", clip=essp.Clip(frames=16, stride=4), batch_size=32)
        for epoch in range(10):
            for batch in loader:
                loss = step(batch.frames.to("cuda"), batch.labels.to("cuda"))
            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "checkpoint.pt")

    `state_dict` is the position of the loop: call it after the step, and the current batch counts as done.
    `load_state_dict` continues from there, also in the middle of an epoch, with exactly the clips that would have come.
    After a `break`, the next `for` is the next epoch. A loader has one iteration at a time: if another one begins, or
    the loader is closed or set to another position, the first one ends with a `ConfigError`.

    With several ranks (`torchrun`, or any launcher that sets RANK and WORLD_SIZE) each process makes a loader with the
    same arguments and gets its share of the clips; `batch_size` is per rank. A state may be loaded with another number
    of ranks and another `batch_size`.

    A loader is an `IterableDataset` of batches: where a framework wants a `DataLoader`, give it
    `DataLoader(loader, batch_size=None)` with `num_workers=0`, since decoding has its own processes.

    A video that cannot be decoded is replaced by another one of its class, with a warning in the log. The processes of
    a loader end with this process, also after Ctrl-C or an error; `close`, or a `with` block, ends them earlier.
    """

    @grouped(clip=Clip, sampling=Sampling, limits=Limits)
    def __init__(
        self,
        catalog: str | Path,
        *,
        split: str = "train",
        validation_fraction: float = 0.15,
        clip: Clip = Clip(),
        feature: str = "rgb",
        params: Mapping[str, Any] | None = None,
        batch_size: int = _BATCH_SIZE,
        sampling: Sampling = Sampling(),
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        transform: Transform | None = None,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
        limits: Limits = Limits(),
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        """Read the catalog and check the arguments; nothing is started before the first batch is requested.

        catalog: path or URI of a catalog made by `essp catalog build`.
        split: `train` is sampled as `sampling.kind` says; of `validation` and `test`, each epoch has
            `sampling.clips_per_video` clips of each video, at even distances. If the catalog has no validation split,
            some of its training videos are set aside. Any other name is a split of the catalog to train on.
        validation_fraction: the share of the training videos that is set aside; 0: none.
        clip: number of frames of a clip and their size; for `flow` of length L, frames = L + 1.
        feature, params: the feature to compute, and its parameters (`essp.features()`; `essp extractor describe NAME`).
        batch_size: clips of a batch of this rank; the last batch of an epoch may be smaller (see `drop_last`).
        sampling: which clips are shown, and in which order.
        delta_timestamps: for series of the catalog, the times at which to take values, in seconds from the last frame
            of a clip, such as `{"action": [0, 0.1, 0.2]}`. `Batch.targets` then has these values, and says which of
            them lie outside the video. Default: the values at the clip's own frames.
        transform: called with each clip `(T, H, W, C)`, which it must not modify, and a random generator that depends
            on seed, epoch and clip only. The results are stacked, so they need the same shape and type. It runs in a
            thread.
        drop_last: leave out the last batch of an epoch if it is smaller.
        device: device of `Batch.frames`; batches are sent ahead of the loop, from pinned memory. For a GPU, without
            `transform` and with one loop, another process prepares batches, so that the loop need not share Python's
            interpreter; it keeps four of them in shared memory, in addition to `limits.memory`.
        limits: how much memory, how many processes and so on the loader may use.
        rank, world_size: default: those of torch.distributed, or RANK and WORLD_SIZE.

        Raises `ConfigError`: `error.field` is the argument to change.
        """
        checked_group("clip", clip, Clip)
        checked_group("sampling", sampling, Sampling)
        checked_group("limits", limits, Limits)
        deltas, section = _deltas_of(delta_timestamps, clip), clip._job_section()
        ranks, where = rendezvous_of(rank, world_size), device_of(device)
        document = document_of(
            data={
                "catalog": uri_of("catalog", catalog),
                **data_of_split(name_of("split", split), validation_fraction),
            },
            clip=section,
            sampling=sampling._job_section(),
            stream={"feature": feature, "params": params_of(feature, params, section["frames"] // clip.snippets)},
            batch_size=whole_number("batch_size", batch_size, 1),
            bounds={},
            limits=limits,
            ranks=ranks,
        )
        source = own_source(document, names_for_arguments(limits), ranks, limits)
        self._set_up(source, source.add(self), ranks, transform, drop_last, where, deltas)
        self._targets.check()

    @classmethod
    @grouped(limits=Limits)
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
        limits: Limits = Limits(),
        rank: int | None = None,
        world_size: int | None = None,
    ) -> Self:
        """A loader of the clips that the trainers of a job file get: its catalog, clips, sampling and limits.

        job: path of the file.
        stream: one of its `streams`; optional if there is only one.
        batch_size: default: the batch size of the stream's trainer.

        The other arguments are those of `Loader`. The job's `output` is neither read nor written, and nothing is
        cropped, mirrored or normalised.
        """
        checked_group("limits", limits, Limits)
        spec = read_job(Path(os.path.expanduser(path_of("job", job))))
        stream = _stream_of(spec, stream, f"{job}")
        if batch_size is None:
            sizes = [trainer.batch_size for trainer in spec.trainers.values() if trainer.stream == stream]
            batch_size = max(sizes, default=_BATCH_SIZE)
        ranks, where = rendezvous_of(rank, world_size), device_of(device)
        document = document_of(
            data=spec.data.model_dump() | {"consumed": split},
            clip=spec.clip.model_dump(),
            sampling=spec.sampling.model_dump(),
            stream=spec.streams[stream].model_dump(),
            batch_size=whole_number("batch_size", batch_size, 1),
            bounds=spec.limits.model_dump(),
            limits=limits,
            ranks=ranks,
        )
        loader = cls.__new__(cls)
        source = own_source(document, names_for_a_file(stream, limits), ranks, limits)
        loader._set_up(source, source.add(loader), ranks, transform, drop_last, where)
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

        Its first epoch is the next one that the job begins. If a state is loaded, or an earlier epoch is chosen by
        `set_epoch`, the clips from there on are decoded again for this loop; the other loops do not wait for it.

        job: name of the job.
        consumer: one of its `consumers`; optional if there is only one. One process at a time may use a name: a later
            process replaces an earlier one.
        bus, cache: URLs; default: ESSP_BUS and ESSP_CACHE. ESSP_STORES names the stores of catalog and output.

        The other arguments are those of `Loader`.

        Raises `ConfigError` if there is no such job or consumer, and `EsspError` if the job has ended.
        """
        urls = {name: name_of(name, url) for name, url in (("bus", bus), ("cache", cache)) if url is not None}
        ranks, where = rendezvous_of(None, None), device_of(device)
        if ranks.world_size > 1:
            raise ConfigError(
                f"{ranks.world_size} ranks cannot share a consumer; give each rank a consumer of its own, which gets "
                "all clips, or use essp.Loader(...), which gives each rank its share",
                field="world_size",
                code="unsupported",
            )
        source = ClusterSource(name_of("job", job), Settings(**urls))
        loader = cls.__new__(cls)
        loader._set_up(
            source,
            source.name_of(None if consumer is None else name_of("consumer", consumer)),
            ranks,
            transform,
            drop_last,
            where,
        )
        loader._late = True
        return loader

    def __repr__(self) -> str:
        spec, clip = self._source.spec, self.clip
        feature = spec.streams[spec.consumers[self._consumer].stream].feature
        size = f"{clip.resize.height} x {clip.resize.width}"
        return (
            f"<Loader of {self._clips:,} clips an epoch in batches of {self._batch_size}; {feature}, "
            f"{clip.frames} frames of {size}, {clip.distance}; {len(self.classes)} classes>"
        )

    def another(self) -> Self:
        """Another loop over the same clips, with the same arguments and `map`; each clip is decoded once for all loops.

        Each loop has its own pace, in its own thread or in turn, and its own epochs and states. Loops that are made
        before the first batch begin together. A loop that is made later begins with the current epoch of this one: the
        clips that it has missed are decoded again for it, unless `set_epoch` makes it begin later. A loop that is much
        slower than the others does not slow them down.

        Raises `ConfigError` if there are already `limits.loops` loops.
        """
        if not isinstance(self._source, OwnSource):
            raise ConfigError(
                "a connected loader is one consumer of its job; connect once for each consumer", code="unsupported"
            )
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
        device: torch.device,
        deltas: Mapping[str, tuple[float, ...]] | None = None,
    ) -> None:
        Epochs.__init__(self, ranks, drop_last)
        self._source = source
        self._consumer = consumer
        self._transform = function_of("transform", transform)
        self._device = device
        self._feed: Feed | None = None
        self._deltas = deltas or {}
        """Name of a series -> seconds from a clip's last frame at which its values are taken."""
        self._refuse_empty_epochs()

    # --- what it has ---

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them."""
        return tuple(self._source.classes)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names along the last axis of `Batch.targets.labels` and `.frame_labels`: all classes, labels and span
        names of the catalog, sorted; the same for every split."""
        return self._targets.names

    @property
    def clip(self) -> ClipSpec:
        """Frames, stride and size: `essp.decode(row, first_frame - row.first_frame, clip=loader.clip)` decodes a clip
        again. `first_frame` of `Batch.meta` counts from the start of the file, `essp.decode` from the row's first
        frame."""
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
        clip, view = self.clip, self._source.phases.view(0)
        timed = view.timed(clip) if clip.by_time else None
        return TargetReader(view.rows, clip.frames, clip.stride, self._deltas, timed)

    def _epoch_from(self, start: Position | None) -> Iterator[tuple[Batch | None, int]]:
        feed = self._feed_at(start)
        while not isinstance(item := feed.next(), PhaseEnd):
            if item is None:
                epochs = self._source.spec.epochs
                if start is None:
                    raise EsspError(
                        f"all {epochs} epochs of the job had begun before this loop joined, and a loop begins with the "
                        "next one; load the state that the loop saved, or call `set_epoch`, to begin earlier"
                    )
                raise EsspError(f"the job has {epochs} epochs, and all of them are over")
            if self._drop_last and item.stop - item.begin < self._batch_size:
                continue  # the last one
            yield None if item.input is None else self._batch(item), item.stop

    def _feed_at(self, start: Position | None) -> Feed:
        feed = self._feed
        if feed is not None:
            continues = feed.pid == os.getpid() and feed.position == start
            if continues and feed.position.phase_index < self._source.spec.epochs:
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
        """Whether the job runs in another process, since this one launches the kernels of a GPU. Loops that share
        clips, and transforms, need the clips in this process."""
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
            **self._times(places, [item.clip.first_frame for item in items]),
            "epoch": [item.clip.epoch for item in items],
            "index": [_index_of(item.clip, self._source.spec.sampling) for item in items],
        }
        further = [meta_of(rows.text("id", place), rows.text("extra", place)) for place in places]
        for name in self._further:
            meta[f"source_{name}" if name in meta else name] = [columns.get(name) for columns in further]
        has_targets = self.clip.snippets == 1 and self._targets.any
        targets = self._targets.of(places, meta["first_frame"]) if has_targets else None
        return Batch(prepared.input.here(), torch.from_numpy(prepared.labels()), meta, targets)

    def _times(self, places: Sequence[int], first_frames: Sequence[int]) -> dict[str, list[Any]]:
        """When the frames of clips appear, if they are chosen by time."""
        clip = self.clip
        if not clip.by_time or clip.snippets > 1:
            return {}
        timed = self._source.phases.view(0).timed(clip)
        return {"times_s": [timed.times_s(*each) for each in zip(places, first_frames, strict=True)]}

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts its own processes."""
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
    """The user's transform. Does not refer to the loader, which would then live as long as its feed."""

    transform: Transform
    sampling: SamplingSpec

    def __call__(self, clip: ClipRef, seen: Seen) -> Seen:
        identity = (self.sampling.seed, clip.epoch, _index_of(clip, self.sampling))
        return Seen(transformed(self.transform, seen.frames, np.random.default_rng(identity)))


def _stream_of(spec: JobSpec, stream: str | None, where: str) -> str:
    """The stream that is meant. Raises `ConfigError` if the job has no such stream."""
    if stream is None and len(spec.streams) == 1:
        [stream] = spec.streams
    name = name_of("stream", "" if stream is None else stream)
    if name not in spec.streams:
        code: ConfigCode = "missing" if stream is None else "unknown"
        raise ConfigError(f"{where} has no stream {name!r}; {suggested(name, spec.streams)}", field="stream", code=code)
    return name


def _deltas_of(given: Mapping[str, Sequence[float]] | None, clip: Clip) -> dict[str, tuple[float, ...]]:
    named = {} if given is None else mapping_of("delta_timestamps", given)
    try:
        deltas = {name: tuple(map(float, plain(seconds))) for name, seconds in named.items()}
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"must be a list of seconds for each name, got {shown(given)}", field="delta_timestamps", code="type"
        ) from error
    if any(not abs(second) <= _MOST_DELTA_S for seconds in deltas.values() for second in seconds):
        raise ConfigError(
            f"must be seconds of at most {_MOST_DELTA_S}, got {shown(given)}", field="delta_timestamps", code="range"
        )
    if deltas and clip.snippets > 1:
        raise ConfigError(
            "clips in snippets have no targets; leave it out, or use snippets=1",
            field="delta_timestamps",
            code="conflict",
        )
    return deltas


def _index_of(clip: ClipRef, sampling: SamplingSpec) -> int:
    """The index of a clip in the epoch of all ranks."""
    return clip.index * sampling.ranks + sampling.rank

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
    grouped,
    name_of,
    on_this_gpu,
    path_of,
    rendezvous_of,
    transformed,
    uri_of,
)
from essp.api.epochs import Batch, Epochs, closed_when_abandoned, nothing
from essp.api.loader_arguments import Budget, Clip, Limits, Sampling, Targets, batch_of, checked_group
from essp.api.loader_job import (
    data_of_split,
    document_of,
    names_for_a_file,
    names_for_arguments,
    own_source,
    params_of,
)
from essp.api.targets import TargetReader
from essp.api.texts import TextReader
from essp.api.views import Shots, Transforms, names_of, section_of, transforms_of
from essp.job_file import read_job
from essp.loops.clips import Clips, JobClips, batches_of
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
from essp_common.validation import suggested
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.loading.batch import Batch as PreparedBatch
from essp_engine.loading.batch import Seen, as_pictures, as_stored
from essp_engine.loading.pixel_batches import PixelBatches, pixels_of_videos
from essp_engine.loading.rendezvous import Rendezvous

_BATCH_SIZE = 32
_OWN = {"video": "id", "uri": "uri", "class_name": "class_name", "split": "split", "group": "group"}
"""Name in `Batch.meta` -> column of the catalog."""
_META = (*_OWN, "first_frame", "last_frame", "epoch", "index")
_META_OF_VIEWS = ("event", "uris", "frame_numbers")


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

    @grouped(clip=Clip, sampling=Sampling, targets=Targets, limits=Limits)
    def __init__(
        self,
        catalog: str | Path,
        *,
        split: str = "train",
        validation_fraction: float = 0.15,
        clip: Clip | Mapping[str, Clip] = Clip(),
        feature: str = "rgb",
        params: Mapping[str, Any] | None = None,
        batch_size: int | Budget = _BATCH_SIZE,
        sampling: Sampling = Sampling(),
        targets: Targets = Targets(),
        transform: Transform | Mapping[str, Transform] | None = None,
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
        clip: number of frames of a clip and their size; for `flow` of length L, frames = L + 1. For a catalog with
            several views of each event, such as cameras, the clip of each view to decode, by its name: `{"top":
            essp.Clip(size=224), "wrist": essp.Clip(size=128)}`. `Batch.frames` is then a dictionary by view. An epoch
            draws events; all views of a clip end at the same moment, which `sampling` chooses by the frames of the
            first view named. Strides count frames of that view, and each view shows the last frame that has appeared at
            each moment, whatever its own rate. If one view cannot be decoded, the whole event is replaced.
        feature, params: the feature to compute, and its parameters (`essp.features()`; `essp extractor describe NAME`).
        batch_size: clips of a batch of this rank; the last batch of an epoch may be smaller (see `drop_last`). Or an
            `essp.Budget` of pixels.
        sampling: which clips are shown, and in which order.
        targets: what a batch has of the catalog in addition to frames and classes: series and texts.
        transform: called with each clip `(T, H, W, C)`, which it must not modify, and a random generator that depends
            on seed, epoch and clip only (so it draws the same for each view of a clip). A dictionary has a function for
            each view; views that are not in it stay as they are. The results are stacked, so they need the same shape
            and type. It runs in a thread.
        drop_last: leave out the last batch of an epoch if it is smaller.
        device: device of `Batch.frames`; batches are sent ahead of the loop, from pinned memory. For a GPU, without
            `transform` and with one loop, another process prepares batches, so that the loop need not share Python's
            interpreter; it keeps four of them in shared memory, in addition to `limits.memory`.
        limits: how much memory, how many processes and so on the loader may use.
        rank, world_size: default: those of torch.distributed, or RANK and WORLD_SIZE.

        Raises `ConfigError`: `error.field` is the argument to change.
        """
        section = section_of(clip)
        checked_group("sampling", sampling, Sampling)
        checked_group("targets", targets, Targets)
        checked_group("limits", limits, Limits)
        ranks, where = rendezvous_of(rank, world_size), device_of(device)
        document = document_of(
            data={
                "catalog": uri_of("catalog", catalog),
                **data_of_split(name_of("split", split), validation_fraction),
            },
            clip=section,
            sampling=sampling._job_section(),
            stream={"feature": feature, "params": params_of(feature, params, section["frames"] // section["snippets"])},
            batch=batch_of(batch_size),
            bounds={},
            limits=limits,
            ranks=ranks,
        )
        source = own_source(document, {**names_for_arguments(limits), **names_of(clip)}, ranks, limits)
        self._set_up(source, source.add(self), ranks, transform, drop_last, where, targets)

    @classmethod
    @grouped(targets=Targets, limits=Limits)
    def of(
        cls,
        job: str | Path,
        stream: str | None = None,
        *,
        split: str = "train",
        batch_size: int | Budget | None = None,
        targets: Targets = Targets(),
        transform: Transform | Mapping[str, Transform] | None = None,
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
        checked_group("targets", targets, Targets)
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
            batch=batch_of(batch_size),
            bounds=spec.limits.model_dump(),
            limits=limits,
            ranks=ranks,
        )
        loader = cls.__new__(cls)
        source = own_source(document, names_for_a_file(stream, limits), ranks, limits)
        loader._set_up(source, source.add(loader), ranks, transform, drop_last, where, targets)
        return loader

    @classmethod
    @grouped(targets=Targets)
    def connect(
        cls,
        job: str,
        consumer: str | None = None,
        *,
        targets: Targets = Targets(),
        transform: Transform | Mapping[str, Transform] | None = None,
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
        checked_group("targets", targets, Targets)
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
            targets,
        )
        loader._late = True
        return loader

    def __repr__(self) -> str:
        spec, clip = self._source.spec, self.clip
        feature = spec.streams[spec.consumers[self._consumer].stream].feature
        pixels = spec.consumers[self._consumer].batch_pixels
        batch = self._batch_size if pixels is None else f"at most {pixels:,} pixels"
        by_video = clip.resize.mode not in ("exact", "crop")
        size = "a size for each video" if by_video else f"{clip.resize.height} x {clip.resize.width}"
        return (
            f"<Loader of {self._clips:,} clips an epoch in batches of {batch}; {feature}, "
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
        options = (self._ranks, self._transform, self._drop_last, self._device, self._wanted)
        other._set_up(self._source, name, *options)
        other._epoch, other._map = self._epoch, self._map
        return other

    def _set_up(
        self,
        source: Source,
        consumer: str,
        ranks: Rendezvous,
        transform: Transforms | None,
        drop_last: bool,
        device: torch.device,
        targets: Targets = Targets(),
    ) -> None:
        Epochs.__init__(self, ranks, drop_last)
        self._source = source
        self._consumer = consumer
        self._transform = transform
        self._transforms = transforms_of(transform, self.views)
        self._device = device
        self._feed: Feed | None = None
        self._wanted = targets
        self._refuse_targets()
        self._refuse_small_budget()
        self._refuse_empty_epochs()

    def _refuse_targets(self) -> None:
        """Raises `ConfigError` for targets that the catalog or the clips cannot have."""
        if self._wanted.series and self.clip.snippets > 1:
            raise ConfigError(
                "clips in snippets have no series; leave it out, or use snippets=1",
                field="targets.series",
                code="conflict",
            )
        self._targets.check()
        self._texts.check()

    def _refuse_small_budget(self) -> None:
        """Raises `ConfigError` if a budget of pixels is too small for a clip, or is given with `drop_last`."""
        limit = self._source.spec.consumers[self._consumer].batch_pixels
        if limit is None:
            return
        if self._drop_last:
            raise ConfigError(
                "batches with a budget of pixels differ in size anyway; leave it out",
                field="drop_last",
                code="conflict",
            )
        view = self._source.phases.view(0)
        pixels = pixels_of_videos(view, self.clip)
        if (most := int(pixels.max())) > limit:
            name = view.rows.text("id", int(pixels.argmax()))
            raise ConfigError(
                f"a clip of {name} has {most} pixels, more than a batch may have ({limit}); raise it to {most} or "
                "more, or lower clip.max_pixels or clip.frames",
                field="batch_size.pixels",
                code="range",
            )

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
    def views(self) -> tuple[str, ...]:
        """The views of an event that a batch has, the first one first; empty if `Batch.frames` is a tensor."""
        spec = self._source.spec
        own = spec.streams[spec.consumers[self._consumer].stream].view
        return () if own else tuple(spec.clip.views)

    @property
    def clip(self) -> ClipSpec:
        """Frames, stride and size, of several views those of the first one: `essp.decode(row, first_frame -
        row.first_frame, clip=loader.clip)` decodes a clip again. `first_frame` of `Batch.meta` counts from the start of
        the file, `essp.decode` from the row's first frame."""
        return self._source.spec.clip

    # --- how it does that ---

    def _take(self) -> Callable[[], None]:
        self._source.leave(self._consumer)
        feed, self._feed = self._feed, None
        if feed is None:
            return nothing
        self._abandoned.detach()
        return feed.close

    def __len__(self) -> int:
        """Batches of an epoch, of this rank; with an `essp.Budget`, of the current epoch."""
        return super().__len__() if self._batches_of_pixels is None else self._batches_of_pixels.count(self._epoch)

    @cached_property
    def _batches_of_pixels(self) -> PixelBatches | None:
        return batches_of(self._source.phases, self._consumer)

    def _batch_end(self, begin: int) -> int:
        batches = self._batches_of_pixels
        return super()._batch_end(begin) if batches is None else batches.stop(self._epoch, begin)

    @property
    def _clips(self) -> int:
        return self._source.phases.plans[0].clips

    @property
    def _batch_size(self) -> int:
        return self._source.spec.consumers[self._consumer].batch_size

    @property
    def _ragged(self) -> bool:
        """Whether frames have a size for each video, so that the clips of a batch are a list."""
        return self.clip.resize.mode == "bounded"

    @cached_property
    def _plan(self) -> int:
        return self._source.phases.digest

    @property
    def _keeps_step(self) -> bool:
        return super()._keeps_step and self._source.phases.plans[0].purpose == TRAIN  # else shares differ

    @cached_property
    def _videos(self) -> ById:
        return ById(self._source.phases.view(0).rows)

    @cached_property
    def _shots(self) -> Shots:
        return Shots(self._source.phases.view(0), self.clip)

    @cached_property
    def _further(self) -> dict[str, str]:
        """Name in `Batch.meta` -> each further column of the catalog's source."""
        names = self._source.phases.view(0).rows.further_names()
        taken = (*_META, *(_META_OF_VIEWS if self.views else ()))
        return {f"source_{name}" if name in taken else name: name for name in names}

    @cached_property
    def _targets(self) -> TargetReader:
        clip, view = self.clip, self._source.phases.view(0)
        timed = view.timed(clip) if clip.by_time else None
        return TargetReader(view.rows, clip.frames, clip.stride, self._wanted.series, timed)

    @cached_property
    def _texts(self) -> TextReader:
        wanted = self._wanted
        further = self._further if wanted.text else {}
        rows, seed = self._source.phases.view(0).rows, self._source.spec.sampling.seed
        return TextReader(rows, _OWN, further, wanted.text, wanted.pick, seed)

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
            yield self._batch(item) if item.clips else None, item.stop

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
        feed = self._feed = Feed(self._clips_from(start), device, self._consumer, self._ragged)
        self._abandoned = closed_when_abandoned(self, feed.close)  # at the process's end the feed closes itself
        return feed

    def _clips_from(self, start: Position | None) -> Clips:
        source = self._source
        if start is not None and isinstance(source, OwnSource) and self._leaves_interpreter():
            source.reach(start)
            return ClipsProcess(source, self._consumer, start)
        transform = _Transform(self._transforms, source.spec.sampling) if any(self._transforms) else None
        view = as_stored if transform is None and self._device.type == "cuda" else as_pictures
        return JobClips(*source.join(self._consumer, start), self._consumer, view, transform, self._batches_of_pixels)

    def _leaves_interpreter(self) -> bool:
        """Whether the job runs in another process, since this one launches the kernels of a GPU. Loops that share
        clips, and transforms, need the clips in this process."""
        alone = len(self._source.spec.consumers) == 1 and len(self.views) <= 1
        return self._device.type == "cuda" and alone and not any(self._transforms)

    def _batch(self, prepared: PreparedBatch) -> Batch:
        items = prepared.clips
        rows = self._source.phases.view(0).rows
        places = [self._videos.place(item.clip.video_id) for item in items]
        meta: dict[str, list[Any]] = {
            **{name: [rows.text(column, place) for place in places] for name, column in _OWN.items()},
            "first_frame": [item.clip.first_frame for item in items],
            "last_frame": [item.clip.last_frame for item in items],
            **self._times(places, [item.clip.first_frame for item in items]),
            "epoch": [item.clip.epoch for item in items],
            "index": [_index_of(item.clip, self._source.spec.sampling) for item in items],
        }
        if self.views:
            meta["event"] = [rows.text("event", place) for place in places]
            meta["uris"] = list(map(self._shots.uris, places))
            meta["frame_numbers"] = list(map(self._shots.frame_numbers, places, meta["first_frame"]))
        further = [meta_of(rows.text("id", place), rows.text("extra", place)) for place in places]
        for name, column in self._further.items():
            meta[name] = [columns.get(column) for columns in further]
        has_targets = self.clip.snippets == 1 and self._targets.any
        targets = self._targets.of(places, meta["first_frame"]) if has_targets else None
        text = self._texts.of(meta, places, list(zip(meta["epoch"], meta["index"], strict=True)))
        return Batch(self._frames(prepared), torch.from_numpy(prepared.labels()), meta, targets, text)

    def _frames(self, prepared: PreparedBatch) -> Any:
        """A tensor, by view if there are several, or a list of tensors that differ in size."""
        if prepared.ragged is not None:
            return prepared.ragged.each()
        if prepared.input is None:
            raise ValueError("a batch without clips")
        frames = prepared.input.here()
        if not self.views:
            return frames
        further = (view.here() for view in prepared.further_inputs)
        return dict(zip(self.views, (frames, *further), strict=True))

    def _times(self, places: Sequence[int], first_frames: Sequence[int]) -> dict[str, list[Any]]:
        """When the frames of clips appear, if they are chosen by time."""
        clip = self.clip
        if not clip.by_time or clip.snippets > 1:
            return {}
        timed = self._source.phases.view(0).timed(clip)
        return {"times_s": [timed.times_s(*each) for each in zip(places, first_frames, strict=True)]}

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts its own processes."""
        lazy = ("_videos", "_further", "_shots", "_targets", "_texts", "_batches_of_pixels")
        made = (*lazy, "_abandoned", "_changing")
        own = {name: value for name, value in self.__dict__.items() if name not in made}
        return own | {"_feed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._changing = Mutex(reentrant=True)
        if isinstance(self._source, OwnSource):
            self._consumer = self._source.add(self)


@dataclass(frozen=True, slots=True)
class _Transform:
    """The user's transforms. Does not refer to the loader, which would then live as long as its feed."""

    transforms: Sequence[Transform | None]
    """Of each view."""
    sampling: SamplingSpec

    def __call__(self, clip: ClipRef, seen: Seen) -> Seen:
        identity = (self.sampling.seed, clip.epoch, _index_of(clip, self.sampling))
        first, *further = (
            view if own is None else Seen(transformed(own, view.frames, np.random.default_rng(identity)))
            for own, view in zip(self.transforms, (seen, *seen.further), strict=True)
        )
        return Seen(first.frames, first.colour, further=tuple(further))


def _stream_of(spec: JobSpec, stream: str | None, where: str) -> str:
    """The stream that is meant. Raises `ConfigError` if the job has no such stream."""
    if stream is None and len(spec.streams) == 1:
        [stream] = spec.streams
    name = name_of("stream", "" if stream is None else stream)
    if name not in spec.streams:
        code: ConfigCode = "missing" if stream is None else "unknown"
        raise ConfigError(f"{where} has no stream {name!r}; {suggested(name, spec.streams)}", field="stream", code=code)
    return name


def _index_of(clip: ClipRef, sampling: SamplingSpec) -> int:
    """The index of a clip in the epoch of all ranks."""
    return clip.index * sampling.ranks + sampling.rank

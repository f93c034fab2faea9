"""How fast a trainer takes its clips from Redis: its own intake and device feed, before a device that only
takes.

The limit is the host's own work on a clip (decode the wanted frames, crop, resize, mirror, stack), on every core at
once. What else a clip costs is transport: the socket, Redis itself, messages, acks. `.bare` is what a loop without
messages and acks, a process a core, has left of that limit. `.device` leaves crop, resize and mirror to the device,
which only takes.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from multiprocessing.connection import Connection

import numpy as np
import redis
import torch
from numpy.typing import NDArray

from benchmarks.bare_redis import BareRedis
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import Cost, marginal, spread
from essp.servers.servers import RedisServer
from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.port import Buffer, FrameCache, clip_key, stream_key
from essp_common.job.clip_spec import ClipSpec, CodecSpec
from essp_common.job.feature_layout import COLOURS, MOTION, FeatureLayout
from essp_common.job.position import Position
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    ClipReady,
    ClipRef,
    FeatureReady,
    FrameCodec,
    PhasePlan,
    Recipe,
    StreamRequest,
)
from essp_common.runtime import ids
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.garbage import collect_rarely
from essp_common.wiring import open_cache
from essp_engine.features.sampling import evenly_spaced
from essp_engine.intake.fetch_processes import FetchProcesses
from essp_engine.intake.ordered import IntakeOptions, OrderedIntake, PhaseEnd, Read
from essp_engine.intake.wanted import reading
from essp_engine.learning.augment import training_cut, training_view
from essp_engine.learning.cut import Cut
from essp_engine.loading.batch import View, on_host
from essp_engine.loading.device_feed import DeviceFeed
from essp_engine.loading.device_views import DeviceViews, on_device
from essp_engine.loading.prefetch import Prefetch, PrefetchOptions
from essp_engine.video import codec
from essp_trainer.config import TrainerSettings
from essp_trainer.releases import Releases

_AIM, _AIM_OF_BARE = Aim(least=0.8), Aim(least=0.9)
_JOB, _TRAINER = "intake", "t"
_BATCH = 32
_SIDE = 256
_AUGMENT = AugmentSpec()
_DIFFERENT = 8
"""Clips of different content; more of them are copies."""
_REDIS_BYTES = 2**31
"""Room for three times the clips of the shorter run of a stream."""
_LARGEST = 4 * 2**20
"""Bytes that hold each of the values."""


@dataclass(frozen=True, slots=True)
class _Stream:
    """What is taken."""

    figure: str
    feature: str
    shape: tuple[int, int, int, int]
    """`(T, H, W, C)` of a clip, or of its feature."""
    codec: FrameCodec
    wanted: int | None
    """Frames of the clip; None: all."""
    layout: FeatureLayout
    aim: Aim | None = _AIM


_JPEG = FrameCodec(name="jpeg", quality=90, subsampling="420")
_CLIP = (11, _SIDE, _SIDE, 3)
_STREAMS = (
    _Stream("intake_rgb", "rgb", _CLIP, _JPEG, 3, COLOURS),
    _Stream("intake_rgb.1", "rgb", _CLIP, _JPEG, 1, COLOURS, None),
    _Stream("intake_rgb.raw", "rgb", _CLIP, FrameCodec(name="raw"), 3, COLOURS, None),
    _Stream("intake_flow", "flow", (1, _SIDE, _SIDE, 20), FrameCodec(name="raw"), None, MOTION),
)
_SMALLEST = _Stream("intake_most", "rgb", (11, 64, 64, 3), FrameCodec(name="raw"), 1, COLOURS, None)
"""Of which there is nearly nothing to copy."""


def intake(scale: Scale) -> Iterator[Figure]:
    """Each stream in turns with the host's work on it."""
    torch.set_num_threads(1)
    collect_rarely()  # as a trainer does
    with tempfile.TemporaryDirectory() as folder, RedisServer(folder, maxmemory_bytes=_REDIS_BYTES) as server:
        for stream in _STREAMS:
            values = _values(stream)
            clips = 2 * _BATCH if scale.quick else min(32 * _BATCH, _REDIS_BYTES // 4 // len(values[0]))
            by_host, by_device = _views(stream)
            shares, cpu_shares, rates, gains, apart_shares, bare_shares = [], [], [], [], [], []
            of_bare, cpu_of_bare = [], []
            for _ in range(scale.rounds):
                host_s = _host_s(stream, values, clips)
                bare = _bare(stream, values, clips, server.url)
                with closing(open_cache(server.url)) as cache:
                    taken = _Taken(stream, values, clips, cache, server.url)
                    cost = taken.cost(by_host)
                    left = taken.cost(by_device)
                    apart = taken.cost(by_host, processes=cpu_count())
                shares.append(1000 * host_s / cpu_count() / cost.wall_ms)
                cpu_shares.append(1000 * host_s / cost.cpu_ms)
                rates.append(1000 / cost.wall_ms)
                gains.append(cost.cpu_ms / left.cpu_ms)
                apart_shares.append(1000 * host_s / cpu_count() / apart.wall_ms)
                bare_shares.append(1000 * host_s / cpu_count() / bare.wall_ms)
                of_bare.append(bare.wall_ms / cost.wall_ms)
                cpu_of_bare.append(bare.cpu_ms / cost.cpu_ms)
            detail: dict[str, float | str] = {"clips_s": round(max(rates)), "host_clips_s_a_core": round(1 / host_s)}
            yield Figure.of(stream.figure, spread(shares), stream.aim, detail)
            yield Figure.of(f"{stream.figure}.bare", spread(bare_shares), None, {})
            yield Figure.of(f"{stream.figure}.of_bare", spread(of_bare), stream.aim and _AIM_OF_BARE, {})
            yield Figure.of(f"{stream.figure}.of_bare.cpu", spread(cpu_of_bare), stream.aim and _AIM_OF_BARE, {})
            yield Figure.of(f"{stream.figure}.cpu", spread(cpu_shares), None, {})
            yield Figure.of(f"{stream.figure}.device", spread(gains), None, {})
            yield Figure.of(f"{stream.figure}.processes", spread(apart_shares), None, {})
        yield from _most(server.url, scale)


def _most(redis_url: str, scale: Scale) -> Iterator[Figure]:
    """Clips that a trainer's process can take, if there are cores for everything else: it runs Python on one."""
    values, (_, view) = _values(_SMALLEST), _views(_SMALLEST)
    for name, processes in (("intake_most", 0), ("intake_most.processes", cpu_count())):
        rates = []
        for _ in range(scale.rounds):
            with closing(open_cache(redis_url)) as cache:
                taken = _Taken(_SMALLEST, values, 2 * _BATCH if scale.quick else 32 * _BATCH, cache, redis_url)
                rates.append(1000 / taken.own_ms(view, processes))
        found = spread(rates)
        yield Figure(name, found.median, "clips/s", None, found.low, found.high)


def _values(stream: _Stream) -> list[Buffer]:
    """Values of the cache, of pictures with detail."""
    random = np.random.default_rng(0)
    frames, height, width, channels = stream.shape
    coarse = random.integers(0, 256, (_DIFFERENT, frames, height // 8, width // 8, channels))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3).astype(np.int16)
    noisy = (smooth + random.integers(-8, 9, smooth.shape, dtype=np.int16)).clip(0, 255).astype(np.uint8)
    return [codec.encode(clip, stream.codec) for clip in noisy]


def _host_s(stream: _Stream, values: Sequence[Buffer], clips: int) -> float:
    """CPU seconds of a clip, without transport."""
    begin = time.process_time()
    _work(stream, (values[index % len(values)] for index in range(clips)))
    return (time.process_time() - begin) / clips


def _work(stream: _Stream, values: Iterable[Buffer]) -> None:
    """The host's work on clips."""
    frames = []
    for index, value in enumerate(values):
        chosen = None if stream.wanted is None else evenly_spaced(stream.shape[0], stream.wanted)
        frames.append(_view(stream, ClipRef(index=index), codec.decode(value, chosen, checked=True)))
        if len(frames) == _BATCH:
            torch.from_numpy(np.stack(frames))
            frames.clear()


def _bare(stream: _Stream, values: Sequence[Buffer], clips: int, redis_url: str) -> Cost:
    """Of a clip, by bare loops, one a core, Redis included. Raises `EOFError` if one of them dies."""
    with closing(redis.Redis.from_url(redis_url)) as client:
        for number in range(clips):
            client.set(_bare_key(number), bytes(values[number % len(values)]))
        try:
            return _of_bare_loops(stream, clips, redis_url)
        finally:
            client.flushdb()


def _of_bare_loops(stream: _Stream, clips: int, redis_url: str) -> Cost:
    """Seconds per clip of loops that start together and process this many clips each. Ends their processes."""
    context = multiprocessing.get_context("spawn")
    loops: list[Connection] = []
    processes = []
    for number in range(cpu_count()):
        loop, other_end = context.Pipe()
        first = number * clips // cpu_count()
        process = context.Process(target=_bare_loop, args=(other_end, stream, redis_url, first, clips), daemon=True)
        process.start()
        other_end.close()
        loops.append(loop)
        processes.append(process)
    for loop in loops:
        loop.recv()
    clock = _Clock(redis_url, [])
    begin = clock()
    for loop in loops:
        loop.send("begin")
    took: list[tuple[float, float]] = [loop.recv() for loop in loops]
    redis_s = clock() - begin
    for process in processes:
        process.join()  # what is measured next has the cores for itself
    wall_s, cpu_s = max(wall for wall, _ in took), redis_s + sum(cpu for _, cpu in took)
    each = 1000 / clips / len(loops)
    return Cost(each * cpu_s, each * wall_s)


def _bare_loop(parent: Connection, stream: _Stream, redis_url: str, first: int, clips: int) -> None:
    """Work on values from this one on, each of which is asked for before the work on the last one."""
    torch.set_num_threads(1)
    with closing(BareRedis(redis_url)) as client:
        values = _received(client, first, clips)
        _work(stream, islice(values, _BATCH))
        parent.send("ready")
        parent.recv()
        begin, begin_cpu = time.monotonic(), time.process_time()
        _work(stream, islice(values, clips))
        parent.send((time.monotonic() - begin, time.process_time() - begin_cpu))


def _received(client: BareRedis, first: int, clips: int) -> Iterator[Buffer]:
    """Values without end, each in the place of the last."""
    memory = bytearray(_LARGEST)
    client.ask(_bare_key(first))
    for number in count(first + 1):
        value = client.receive(memory)
        client.ask(_bare_key(number % clips))
        yield value


def _bare_key(number: int) -> str:
    return f"bare:{number}"


def _view(stream: _Stream, clip: ClipRef, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return training_view(frames, _AUGMENT, stream.layout, 0, 0, clip.index)


def _cuts(clip: ClipRef, height: int, width: int) -> list[Cut]:
    return [training_cut(height, width, _AUGMENT, 0, 0, clip.index)]


def _views(stream: _Stream) -> tuple[View, View]:
    """Made by the host, and left to the device."""
    return on_host(partial(_view, stream)), on_device(_cuts)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Clips of a stream, taken from Redis."""

    stream: _Stream
    values: Sequence[Buffer]
    clips: int
    cache: FrameCache
    redis_url: str

    def cost(self, view: View, processes: int = 0) -> Cost:
        """Of a clip, that of Redis and of children included, from Redis to the device and acked; without the start.

        `processes`: that fetch, in place of threads.
        """
        less, more = (self._whole(view, clips, processes) for clips in (self.clips, 3 * self.clips))
        return marginal(less.everything, more.everything, 2 * self.clips)

    def own_ms(self, view: View, processes: int) -> float:
        """CPU time of a clip in the trainer's process."""
        less, more = (self._whole(view, clips, processes) for clips in (self.clips, 3 * self.clips))
        return (more.own_ms - less.own_ms) / (2 * self.clips)

    def _whole(self, view: View, clips: int, processes: int) -> _Run:
        with closing(MemoryBus()) as bus:
            for index in range(clips):
                _publish(self.stream, bus, self.cache, index, self.values[index % len(self.values)])
            read = _reading(self.stream)
            elsewhere = FetchProcesses.of(processes, self.redis_url, "", read, view)
            if elsewhere is not None:
                elsewhere.start()
            clock = _Clock(self.redis_url, [] if elsewhere is None else elsewhere.pids)
            ended: list[tuple[float, float, float]] = []
            begin = time.monotonic(), time.process_time(), clock()
            _take(
                self.stream,
                bus,
                self.cache,
                clips,
                view,
                elsewhere,
                lambda: ended.append((time.monotonic(), time.process_time(), clock())),
            )
            wall_s, own_s, others_s = (b - a for a, b in zip(begin, ended[0], strict=True))
        if left := self.cache.usage().keys:
            raise RuntimeError(f"{left} clips were not acked")
        return _Run(Cost(1000 * (own_s + others_s), 1000 * wall_s), 1000 * own_s)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a number of clips cost."""

    everything: Cost
    own_ms: float
    """CPU time of the trainer's process."""


def _publish(stream: _Stream, bus: MemoryBus, cache: FrameCache, index: int, value: Buffer) -> None:
    """What a decoder or extractor does with a clip."""
    consumer = ids.trainer_consumer(_TRAINER)
    clip = ClipRef(job=_JOB, purpose=TRAIN, index=index, class_id=index % 10, video_id=f"v{index}")
    key = clip_key(_JOB, TRAIN, 0, index, 0)
    topic = topics.stream_topic(stream.feature)
    if topic == topics.CLIPS:
        request = StreamRequest(stream=_TRAINER, feature=stream.feature, consumers=[consumer])
        recipe = Recipe(codec=stream.codec, streams=[request])
        message = ClipReady(clip=clip, key=key, bytes=len(value), recipe=recipe).SerializeToString()
    else:
        key = stream_key(key, _TRAINER)
        ready = FeatureReady(clip=clip, stream=_TRAINER, key=key, bytes=len(value), consumers=[consumer])
        message = ready.SerializeToString()
    cache.put(key, codec.summed(value), [consumer], 600)
    bus.ensure_topics({topic: topics.DATA_PARTITIONS, topics.PROGRESS: 1})
    bus.publish(topic, str(index).encode(), message, partition=index % topics.DATA_PARTITIONS)


def _take(
    stream: _Stream,
    bus: MemoryBus,
    cache: FrameCache,
    clips: int,
    view: View,
    elsewhere: FetchProcesses | None,
    taken: Callable[[], object],
) -> None:
    """What a trainer does with them, but for the model. `taken`: called when it is through, before it closes."""
    settings = TrainerSettings()
    phases = [PhasePlan(purpose=TRAIN, clips=clips)]
    consumer = ids.trainer_consumer(_TRAINER)
    one_thread = partial(torch.set_num_threads, 1)
    options = IntakeOptions(
        job=_JOB,
        consumer=consumer,
        stream=_TRAINER,
        feature=stream.feature,
        fetches=cpu_count(),
        read=_reading(stream),
        prepare=view,
        set_up_thread=one_thread,
        elsewhere=elsewhere,
    )
    taking = OrderedIntake(bus, cache, options, phases, Position(0, 0))
    prepared = PrefetchOptions(
        batch_size=_BATCH,
        batches_ahead=settings.prefetch_batches,
        name=_TRAINER,
        set_up_thread=one_thread,
    )

    start = Position(0, 0)
    prefetch = Prefetch(taking, phases, start, prepared)
    with (
        closing(DeviceFeed(prefetch, torch.device("cpu"), _TRAINER, DeviceViews(_AUGMENT.crop, stream.layout))) as feed,
        closing(Releases(taking, lambda: False, _TRAINER)) as releases,
    ):
        while not isinstance(batch := feed.next(10.0), PhaseEnd):
            if batch is not None:
                releases.release(batch.items)
        releases.settle()
        taken()


def _reading(stream: _Stream) -> Read:
    clip = ClipSpec(frames=stream.shape[0], codec=CodecSpec(name=stream.codec.name))
    return reading(clip, stream.wanted)


class _Clock:
    """CPU seconds that a Redis and other processes have used."""

    def __init__(self, url: str, pids: Sequence[int]) -> None:
        self._client = redis.Redis.from_url(url)
        self._pids = pids

    def __call__(self) -> float:
        used = self._client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"]) + sum(map(_cpu_s, self._pids))


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        user, system = map(int, file.read().rpartition(")")[2].split()[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")

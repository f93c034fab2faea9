"""Bytes on their way: through Redis, through shared memory, and out of an object store."""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from benchmarks.bare_redis import BareRedis
from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale
from benchmarks.inputs import MINUTE
from benchmarks.measure import spread
from essp.servers.servers import RedisServer, S3Server
from essp_common.cache.port import FrameCache, clip_key
from essp_common.catalog.file import read_catalog
from essp_common.catalog.view import CatalogView
from essp_common.errors import BadVideo
from essp_common.messages.recipe import resize_of
from essp_common.objects.port import ObjectStore
from essp_common.objects.ranged import RangedFile
from essp_common.pb.v1.messages_pb2 import TRAIN, Seed
from essp_common.wiring import Stores, open_cache, open_store
from essp_engine.planning.phases import Phases
from essp_engine.planning.plan import seek_to
from essp_engine.video.geometry import output_size
from essp_engine.video.reader import Reader

_VALUES = {"raw": 11 * 256 * 256 * 3 + 64, "jpeg": 11 * 14_000}
"""Bytes of a clip of 11 frames of 256x256."""
_HANDOFF = Aim(least=0.9)
_SHARED = Aim(least=3.0)
_FETCHED = Aim(most=0.2)


def redis_handoff(scale: Scale) -> Iterator[Figure]:
    """Bytes a second of put and get through the adapter over SET and GET, by redis-py and on a bare socket.

    `put` also stores who must ack and for how long, in one transaction; SET does not.
    """
    import redis

    with tempfile.TemporaryDirectory() as folder, RedisServer(folder) as server:
        cache = open_cache(server.url)
        bare = BareRedis(server.url)
        client = redis.Redis.from_url(server.url)
        key = clip_key("benchmark", TRAIN, 0, 0, 0)
        try:
            for name, size in _VALUES.items():
                value = np.random.default_rng(0).bytes(size)
                ways = {
                    "adapter": partial(_adapter, cache, key, value),
                    "bare": partial(_bare, bare, value),
                    "client": partial(_client, client, value),
                }
                times = _take_turns(ways, 20 * scale.rounds, repeats=max(1, 2_000_000 // size))
                detail = {f"{way}_mb_s": round(2 * size / min(seconds) / 1e6) for way, seconds in times.items()}
                for figure, peer in (("redis_handoff", "client"), ("redis_handoff_socket", "bare")):
                    by_round = [a / b for a, b in zip(times[peer], times["adapter"], strict=True)]
                    yield Figure.of(f"{figure}.{name}", spread(by_round), _HANDOFF, detail)
        finally:
            cache.close()
            bare.close()
            client.close()


def shm_handoff(scale: Scale) -> Iterator[Figure]:
    """Time of put, get, one look at every page and ack, through Redis / through shared memory of one machine."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(folder) as server:
        caches = {"redis": open_cache(server.url), "shm": open_cache(f"shm://benchmark-{os.getpid()}?bytes=48MiB")}
        try:
            for name, size in _VALUES.items():
                value = np.random.default_rng(0).bytes(size)
                key = clip_key("benchmark", TRAIN, 0, 0, 0)
                ways = {way: partial(_used, cache, key, value) for way, cache in caches.items()}
                times = _take_turns(ways, 10 * scale.rounds, repeats=max(8, 4_000_000 // size))
                detail = {f"{way}_mb_s": round(2 * size / min(seconds) / 1e6) for way, seconds in times.items()}
                by_round = [a / b for a, b in zip(times["redis"], times["shm"], strict=True)]
                yield Figure.of(f"shm_handoff.{name}", spread(by_round), _SHARED if name == "raw" else None, detail)
        finally:
            for cache in caches.values():
                cache.close()


def s3_bytes(scale: Scale) -> Iterator[Figure]:
    """Bytes fetched for one clip of a video of a minute, opened for it alone, over the size of the file."""
    job = NullJob(scale.catalog(MINUTE))
    catalog = read_catalog(*Stores(("file:///",)).resolve(f"file://{job.catalog}"))
    phases = Phases(job.spec(4 * scale.rounds, "file:///tmp"), catalog)
    view = phases.view(0)
    with tempfile.TemporaryDirectory() as folder, S3Server(folder) as server:
        server.create_bucket("videos")
        os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        store = open_store(server.store("videos"))
        sizes = {
            row.uri: store.put_file(f"{number}.mp4", row.uri.removeprefix("file://")).size_bytes
            for number, row in enumerate(view.rows)
        }
        shares, requests = [], []
        for index in range(len(phases.plan(0))):
            row = view.rows[phases.plan(0).clip(index).video]
            file = _Counted(store, f"{view.rows.index(row)}.mp4", sizes[row.uri])
            _read(file.opened(), job, view, phases, index)
            shares.append(file.fetched_bytes / sizes[row.uri])
            requests.append(file.requests)
    detail = {
        "file_bytes": max(sizes.values()),
        "requests": round(sum(requests) / len(requests), 1),
        "clip_bytes": round(max(sizes.values()) * sum(shares) / len(shares)),
    }
    yield Figure.of("s3_bytes", spread(shares), _FETCHED, detail)


def _adapter(cache: FrameCache, key: str, value: bytes) -> None:
    cache.put(key, value, ["trainer.a"], 60)
    cache.get(key)


def _used(cache: FrameCache, key: str, value: bytes) -> None:
    cache.put(key, value, ["trainer.a"], 60)
    np.frombuffer(cache.get(key), np.uint8)[::4096].sum()
    cache.ack(key, "trainer.a")


def _bare(bare: BareRedis, value: bytes) -> None:
    bare.set("bare", value)
    bare.get("bare")


def _client(client: Any, value: bytes) -> None:
    client.set("client", value)
    client.get("client")


def _read(file: BinaryIO, job: NullJob, view: CatalogView, phases: Phases, index: int) -> None:
    clip = phases.plan(0).clip(index)
    row = view.rows[clip.video]
    seed = Seed(
        index=index,
        first_frame=clip.first_frame,
        frame_count=clip.frame_count,
        stride=clip.stride,
        last_frame=int(view.first_frame[clip.video] + view.length[clip.video]) - 1,
    )
    seek_to(row, clip.first_frame, seed.seek)
    resize = resize_of(phases.spec.clip)
    target = np.empty((clip.frame_count, *output_size(resize, row.height, row.width), 3), np.uint8)
    with Reader(file, lookahead=row.lookahead) as reader:
        problem: BadVideo | None = reader.read([seed], resize, [target])[0]
    if problem is not None:
        raise problem


class _Counted:
    """An object read in ranges, as stores open it, and what that fetches."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self.fetched_bytes = 0
        self.requests = 0

    def opened(self) -> BinaryIO:
        """The file."""
        return io.BufferedReader(RangedFile(self._size_bytes, self._fetch))

    def _fetch(self, start: int, length: int) -> bytes:
        data = self._store.get(self._key, start, length)
        self.fetched_bytes += len(data)
        self.requests += 1
        return data


def _take_turns(ways: Mapping[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of one call, for each way and round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(repeats):
                way()
            times[name].append((time.perf_counter() - begin) / repeats)
    return times

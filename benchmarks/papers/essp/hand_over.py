"""Frames between clusters: by one cache node and by two, and without a cache.

`nodes`: clips per second that pass through a Redis Cluster whose nodes are each behind a link of a fixed rate, far
below what the processors can do, so that the links decide: does a second node carry twice as much?

`hand_over`: processor time to transfer one clip from a decoder to a trainer on another machine: through Redis (put, get
and ack, with the server), and over a plain socket between the two, the lower bound of any direct transfer. For
comparison, the processor time to decode the clip and to compute its flow.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from matplotlib.figure import Figure

from benchmarks.papers.document import markdown, spread
from benchmarks.papers.essp.extracting import catalog_of, job
from benchmarks.papers.essp.links import cluster
from benchmarks.papers.essp.traditional import Task
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp.capacity.measuring import measure
from essp.servers.servers import RedisServer
from essp_common.cache.port import FrameCache, clip_key
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_common.runtime.config import Settings
from essp_common.wiring import open_cache

VALUE_BYTES = 11 * 256 * 256 * 3
"""A clip of 11 frames of 256x256, uncompressed."""
RATE = 25e6
"""Bytes per second of a node's link, each way."""
NODES = (1, 2, 4)
_THREADS = 8


def through(nodes: int, clips: int) -> dict[str, float]:
    """Clips per second that are put, read once and acknowledged, with this number of cache nodes."""
    value = os.urandom(VALUE_BYTES)
    with tempfile.TemporaryDirectory(prefix="essp-nodes-") as folder, cluster(Path(folder), nodes, RATE) as url:
        cache = open_cache(url)
        try:
            pass_one = partial(_pass, cache, value)
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(pass_one, range(_THREADS)))  # connections
                began_s = time.perf_counter()
                list(pool.map(pass_one, range(_THREADS, _THREADS + clips)))
                took_s = time.perf_counter() - began_s
        finally:
            cache.close()
    return {"clips_per_s": round(clips / took_s, 3), "link_clips_per_s": round(RATE / VALUE_BYTES, 3)}


def _pass(cache: FrameCache, value: bytes, number: int) -> None:
    key = clip_key("benchmark", TRAIN, 0, number, 0)
    cache.put(key, value, ["trainer.a"], 60)
    cache.get(key)
    cache.ack(key, "trainer.a")


def by_redis(clips: int) -> dict[str, float]:
    """Processor time of a clip through Redis: both ends, and the server."""
    value = os.urandom(VALUE_BYTES)
    with tempfile.TemporaryDirectory(prefix="essp-redis-") as folder, RedisServer(folder) as server:
        cache = open_cache(server.url)
        try:
            _pass(cache, value, 0)
            process = next(one for one in psutil.Process().children(recursive=True) if "redis" in one.name())
            before = time.process_time(), sum(process.cpu_times()[:2])
            for number in range(1, clips + 1):
                _pass(cache, value, number)
            ends_s, server_s = time.process_time() - before[0], sum(process.cpu_times()[:2]) - before[1]
        finally:
            cache.close()
    return {"ends_ms": round(1e3 * ends_s / clips, 3), "server_ms": round(1e3 * server_s / clips, 3)}


def by_socket(clips: int) -> dict[str, float]:
    """Processor time of a clip over a socket between two threads, both ends; each clip is acknowledged."""
    value = memoryview(os.urandom(VALUE_BYTES))
    listener = socket.create_server(("127.0.0.1", 0))

    def receive() -> None:
        connection, _ = listener.accept()
        with connection:
            target = memoryview(bytearray(VALUE_BYTES))
            for _ in range(clips + 1):
                got = 0
                while got < VALUE_BYTES:
                    got += connection.recv_into(target[got:])
                connection.sendall(b"k")

    receiver = threading.Thread(target=receive)
    receiver.start()
    with socket.create_connection(listener.getsockname()) as sender:
        sender.sendall(value)
        sender.recv(1)
        began_s = time.process_time()
        for _ in range(clips):
            sender.sendall(value)
            sender.recv(1)
        ends_s = time.process_time() - began_s
    receiver.join()
    listener.close()
    return {"ends_ms": round(1e3 * ends_s / clips, 3), "server_ms": 0.0}


def making(catalog: Path, quick: bool) -> dict[str, float]:
    """Processor milliseconds of a clip in each part of a job, without a cache between processes."""
    task = Task((Path(),) * 240, (0,), epochs=200, batch=8)
    costs = measure(job(catalog, "file:///none", task, False), Settings(), 5.0 if quick else 15.0)
    return {name: round(1e3 * seconds, 3) for name, seconds in costs.seconds.items()}


def _nodes_steps(options: Options) -> Steps:
    clips = 16 if options.quick else 96
    for number in range(options.rounds):
        for nodes in NODES[:2] if options.quick else NODES:
            yield f"{nodes}.{number}", partial(apart, through, nodes, clips)


def _nodes_table(values: Values) -> str:
    rows = []
    for nodes in NODES:
        rates = [value["clips_per_s"] for key, value in values.items() if key.startswith(f"{nodes}.")]
        if rates:
            link = next(iter(values.values()))["link_clips_per_s"]
            most = spread([rate / (nodes * link) for rate in rates], "{:.2f}")
            rows.append([str(nodes), spread(rates, "{:.1f}"), f"{nodes * link:.1f}", most])
    return markdown(["cache nodes", "clips/s", "what the links carry", "share of it"], rows)


def _draw_nodes(values: Values) -> Figure | None:
    figure = Figure(figsize=(4.5, 3.0), layout="constrained")
    axes: Any = figure.subplots()
    link = next(iter(values.values()))["link_clips_per_s"]
    axes.plot(NODES, [nodes * link for nodes in NODES], "--", color="grey", label="what the links carry")
    for key, value in values.items():
        label = "measured" if key == next(iter(values)) else None
        axes.plot(int(key.split(".")[0]), value["clips_per_s"], "o", color="#2a7f62", label=label)
    axes.set_xlabel("cache nodes")
    axes.set_ylabel("clips/s")
    axes.set_xticks(NODES)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _steps(options: Options) -> Steps:
    clips = 20 if options.quick else 200
    catalog = catalog_of("made", options)
    for number in range(options.rounds):
        ways: dict[str, Callable[[int], dict[str, float]]] = {"redis": by_redis, "socket": by_socket}
        for name, way in ways.items():
            yield f"{name}.{number}", partial(apart, way, clips)
    yield "making", partial(apart, making, catalog, options.quick)


def _table(values: Values) -> str:
    rows, total = [], {}
    for name, title in (("redis", "through Redis: put, get, ack"), ("socket", "over a socket, acknowledged")):
        found = [value for key, value in values.items() if key.startswith(f"{name}.")]
        total[name] = [value["ends_ms"] + value["server_ms"] for value in found]
        ends, server = (spread([value[part] for value in found]) for part in ("ends_ms", "server_ms"))
        rows.append([title, ends, server, spread(total[name])])
    text = markdown(["a clip of 2.2 MB, CPU ms", "both ends", "server", "together"], rows)
    if "making" in values:
        made = sum(ms for name, ms in values["making"].items() if not name.startswith("trainer."))
        saved = spread(total["redis"], "{:.6f}"), spread(total["socket"], "{:.6f}")
        least = float(saved[0].split()[0]) - float(saved[1].split()[0])
        text += f"\n\nMaking and feeding that clip takes {made:.1f} ms of CPU time (decoding, flow, master, intake). "
        text += f"A direct way would save at most {least:.2f} ms of it, {100 * least / made:.0f} %."
    return text


NODES_PART = Part("cache_nodes", "clips/s through one, two and four cache nodes, each behind a link of 25 MB/s",
                  _nodes_steps, _nodes_table, _draw_nodes)  # fmt: skip
PART = Part("hand_over", "processor time of a clip between two machines, with and without a cache", _steps, _table)

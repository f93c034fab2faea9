"""Very many short videos to embeddings, by processes that are killed: is each of them there exactly once?

    python -m tests.scale.extract --videos 100000

Videos of 8 frames are generated, each with content of its own. Two decoders and two predictors turn them into vectors;
one of each is killed on the way (SIGKILL), and another one takes its place. Then pyarrow reads the table: it has to
have one row for each video, in the order of the catalog, and the vectors of a sample have to be those of a loop of our
own over the same files. Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import safetensors.torch
import torch
from numpy.typing import NDArray

import essp
from essp.catalog.build import BuildOptions, build
from essp.servers.servers import RedisServer
from essp_common.job.status import JobStatus
from essp_engine.learning.networks import Small
from tests.harness.brokers import kafka_broker
from tests.harness.embeddings import CROP, SIDE, embeddings
from tests.harness.rounding import TOLERANCE
from tests.integration.fleet import Api, Fleet, Process

FRAMES, HEIGHT, WIDTH = 8, 48, 64
SAMPLE = 200
JOB = "vectors"
STORES = ("file:///",)
_A_CLASS = 1000
"""Videos in a folder."""
_TOKEN = "scale"
_REDIS_BYTES = 256 * 2**20
_LONGEST_S = 4 * 3600.0
_KILLED_AT = {"decoder": 1 / 3, "predictor": 2 / 3}
"""Which of the processes is killed, and after which share of the clips."""


def main() -> None:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=100_000)
    count = parser.parse_args().videos
    with tempfile.TemporaryDirectory(prefix="essp-scale-") as name:
        folder = Path(name)
        with timed(f"made {count} videos"):
            make_videos(folder / "videos", count)
        catalog = folder / "catalog.parquet"
        with timed("read them into a catalog"):
            build(f"file://{folder}/videos", f"file://{catalog}", STORES, BuildOptions("folders"))
        network = make_network(folder / "small.safetensors")
        with timed("computed their vectors", count):
            status = extract(folder, catalog)
        print(f"decoded or scored again: {status.counts.reissued} of {status.counts.issued} clips issued")
        wrong = problems(folder / "out", catalog, network)
    print("\n".join(wrong) or f"{count} rows, each video once, in order; {min(SAMPLE, count)} of them computed again")
    sys.exit(bool(wrong))


@contextmanager
def timed(what: str, count: int = 0) -> Iterator[None]:
    """Print how long it took, and how many a second."""
    began_s = time.monotonic()
    yield
    took_s = time.monotonic() - began_s
    print(f"{what} in {took_s:.0f} s" + f", {count / took_s:.0f} a second" * (count > 0), flush=True)


def make_videos(folder: Path, count: int) -> None:
    """Make videos `CLASS/NUMBER.mp4`."""
    folders = [folder / f"{first // _A_CLASS:04}" for first in range(0, count, _A_CLASS)]
    with ProcessPoolExecutor() as processes:
        list(processes.map(_make_class, folders, range(0, count, _A_CLASS), [count] * len(folders)))


def _make_class(folder: Path, first: int, end: int) -> None:
    folder.mkdir(parents=True)
    for number in range(first, min(first + _A_CLASS, end)):
        with av.open(str(folder / f"{number:07}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=25, options={"qscale": "2"})
            stream.width, stream.height, stream.thread_count = WIDTH, HEIGHT, 1
            for picture in pictures(number):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())


def pictures(number: int) -> NDArray[np.uint8]:
    """The frames of a video, `(8, 48, 64, 3)`: soft waves that move, of colours, lengths and directions of its own."""
    rng = np.random.default_rng(number)
    time_, y, x = np.ogrid[0:FRAMES, 0:HEIGHT, 0:WIDTH]
    phases = rng.uniform(0, 2 * np.pi, 3)
    steps = rng.uniform(-0.3, 0.3, (3, 3))
    waves = [np.sin(phase + dt * time_ + dy * y + dx * x) for phase, (dt, dy, dx) in zip(phases, steps, strict=True)]
    return np.stack([128 + 100 * wave for wave in waves], axis=-1).astype(np.uint8)


def make_network(weights: Path) -> Small:
    """A small network, with its weights in a file."""
    torch.set_num_threads(1)  # many would wait for one another on cores that are busy
    torch.manual_seed(1)
    network = Small().eval()
    safetensors.torch.save_file(network.state_dict(), weights)
    return network


def job_text(folder: Path, catalog: Path) -> str:
    """A clip of all frames of each video, through the network."""
    extracted = {"network": "small", "weights": f"file://{folder}/small.safetensors"}
    return json.dumps(
        {
            "name": JOB,
            "output": f"file://{folder}/out",
            "data": {"catalog": f"file://{catalog}"},
            "clip": {"frames": FRAMES, "resize": {"mode": "exact", "height": SIDE, "width": SIDE}},
            "sampling": {"every_frames": FRAMES},
            "extract": {**extracted, "crop": CROP, "evaluation_scale": CROP / SIDE},
            "limits": {"budget": "64MiB"},
        }
    )


@dataclass
class Workers:
    """The processes of one service."""

    fleet: Fleet
    service: str
    processes: list[Process]

    @classmethod
    def started(cls, fleet: Fleet, service: str, count: int = 2) -> Workers:
        return cls(fleet, service, [fleet.start(service) for _ in range(count)])

    def replace_one(self) -> None:
        """Kill one of them, and start another."""
        self.fleet.kill(self.processes.pop(0))
        self.processes.append(self.fleet.start(self.service))


def extract(folder: Path, catalog: Path) -> JobStatus:
    """Run the job; its status when it is complete."""
    with RedisServer(folder, maxmemory_bytes=_REDIS_BYTES) as redis, kafka_broker(folder) as kafka:
        environment = {
            "ESSP_BUS": kafka.url,
            "ESSP_CACHE": redis.url,
            "ESSP_STORES": json.dumps(STORES),
            "ESSP_API_TOKEN": _TOKEN,
            "ESSP_DECODER_PROCESSES": "1",
            "ESSP_LOG_FORMAT": "text",
            "OMP_NUM_THREADS": "1",
        }
        with Fleet(environment, folder) as fleet:
            master = fleet.start("master", "--port", "0")
            pools = [Workers.started(fleet, service) for service in _KILLED_AT]
            with closing(Api(fleet, master, _TOKEN)) as api:
                assert api.start(job_text(folder, catalog)) == 202, "the job is not accepted"
                status = followed(fleet, api, pools)
        assert redis.execute("DBSIZE") == b":0\r\n", "something is left in Redis"
    return status


def followed(fleet: Fleet, api: Api, pools: Sequence[Workers]) -> JobStatus:
    """Kill what is to be killed on the way, and wait for the end."""

    def reached(share: float) -> JobStatus | None:
        status = api.status(JOB)
        done = status.progress.done >= share * status.progress.total > 0
        return status if done or status.state.ended else None

    for pool in pools:
        status = fleet.until(pool.service, partial(reached, _KILLED_AT[pool.service]), _LONGEST_S)
        pool.replace_one()
        print(f"killed a {pool.service} at {status.progress.done} of {status.progress.total} clips, "
              f"load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    status = fleet.until("the end", lambda: s if (s := api.status(JOB)).state.ended else None, _LONGEST_S)
    assert status.state == "completed", status.reason
    return status


def problems(output: Path, catalog: Path, network: Small) -> list[str]:
    """What is wrong with the table; empty if nothing is."""
    videos = list(essp.open_catalog(catalog).rows)
    table = pq.read_table(output / "features" / "rgb", columns=["video_id", "clip", "vector"])
    there = table.column("video_id").to_pylist()
    wrong = []
    if len(set(there)) != len(there):
        wrong.append(f"{len(there) - len(set(there))} rows are there twice")
    if missing := {video.id for video in videos} - set(there):
        wrong.append(f"{len(missing)} videos have no row, such as {min(missing)}")
    if not wrong and there != [video.id for video in videos]:
        wrong.append("the rows are not in the order of the catalog")
    if wrong:
        return wrong
    for number in np.random.default_rng(1).permutation(len(videos))[:SAMPLE]:
        (expected,) = embeddings(videos[number], network, FRAMES)
        found = np.array(table.column("vector")[int(number)].as_py(), np.float32)
        if not np.allclose(found, expected, rtol=0, atol=100 * TOLERANCE):
            wrong.append(f"{videos[number].id}: its vector is off by {np.abs(found - expected).max():g}")
    return wrong


if __name__ == "__main__":
    main()

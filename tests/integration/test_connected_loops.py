"""Loops of the user's own take part in a job over a real broker and a real cache: they come, go, and are killed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import essp
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from tests.harness import launcher
from tests.harness.journeys import make_videos
from tests.harness.loops import loader
from tests.harness.refused import refused
from tests.harness.waiting import until

pytestmark = pytest.mark.integration

EPOCHS, CLIPS = 6, 40


@pytest.fixture
def job(kafka_url: str, empty_redis_url: str, tmp_path: Path, unique: str) -> Iterator[Embedded]:
    """A job that feeds two loops, and its master and decoders."""
    make_videos(tmp_path / "videos")
    catalog = f"file://{tmp_path}/catalog.parquet"
    build((tmp_path / "videos").as_uri(), catalog, ("file:///",), BuildOptions("folders"))
    spec = JobSpec.model_validate(
        {
            "name": f"loops-{unique}",
            "output": f"file://{tmp_path}/run",
            "data": {"catalog": catalog},
            "epochs": EPOCHS,
            "clip": {"frames": 4, "stride": 2, "resize": {"mode": "crop", "height": 40, "width": 40}},
            "sampling": {"clips_per_epoch": CLIPS},
            "streams": {"rgb": {"params": {"frames": 4}}},
            "consumers": {
                "one": {"stream": "rgb", "batch_size": 4},
                "two": {"stream": "rgb", "batch_pixels": 20_000},  # three clips of 6,400
            },
            "limits": {"budget": "2MiB"},
        }
    )
    settings = Settings(bus=kafka_url, cache=empty_redis_url)
    options = EmbeddedOptions(decoders=1, consumers=lambda *_: ())
    with Embedded(spec, settings, options) as embedded:
        yield embedded


@pytest.fixture
def alone(job: Embedded, tmp_path: Path) -> list[list[tuple[int, ...]]]:
    """The clips of each epoch, as a loader without servers gives them."""
    catalog = tmp_path / "catalog.parquet"
    with loader(catalog, clips_per_epoch=CLIPS) as clips:
        return [taken(clips) for _ in range(EPOCHS)]


def connect(job: Embedded, consumer: str, kafka_url: str, redis_url: str) -> essp.Loader:
    targets = essp.Targets(text=["class_name"])
    return essp.Loader.connect(job.status().name, consumer, targets=targets, bus=kafka_url, cache=redis_url)


def taken(batches: Any) -> list[tuple[int, ...]]:
    """What identifies each clip: epoch, index, first frame, a sum over its pixels."""
    return [
        (*values, int(frames.sum()))
        for batch in batches
        for frames, *values in zip(
            batch.frames, *(batch.meta[name] for name in ("epoch", "index", "first_frame")), strict=True
        )
    ]


KILLED = """
import json, sys
import essp
job, bus, cache, state = sys.argv[1:]
clips = essp.Loader.connect(job, "one", bus=bus, cache=cache)
clips.load_state_dict(json.loads(state))
for number, batch in enumerate(clips):
    print(json.dumps(clips.state_dict()), flush=True)
    if number == 2:
        sys.stdin.read()
"""


def test_loops_of_a_cluster_get_what_an_own_loop_gets(
    job: Embedded, alone: list[list[tuple[int, ...]]], kafka_url: str, redis_url: str
) -> None:
    name = job.status().name
    with refused("consumer", "unknown"):
        connect(job, "three", kafka_url, redis_url)
    with refused("job", "not_found"):
        essp.Loader.connect("nope", "one", bus=kafka_url, cache=redis_url)
    with connect(job, "one", kafka_url, redis_url) as one:
        assert taken(one) == alone[0]
        with connect(job, "two", kafka_url, redis_url) as late:
            begins = late.epoch
            batch = next(iter(late))
            part = taken([batch])
            assert batch.text["class_name"] == batch.meta["class_name"]
            assert len(batch) == 3
        assert part[0][:2] == (late.epoch, 0)
        assert late.epoch > begins
        state = one.state_dict()
    process = subprocess.Popen(
        [*launcher.python(), "-c", KILLED, name, kafka_url, redis_url, json.dumps(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGKILL)
    assert '"clip": 12' in lines[2]
    with connect(job, "one", kafka_url, redis_url) as one, connect(job, "two", kafka_url, redis_url) as two:
        one.load_state_dict(json.loads(lines[0]))
        two.set_epoch(2)
        assert taken(one) == alone[1][4:]
        assert taken(two) == alone[2]
        for epoch in range(2, EPOCHS):
            assert taken(one) == alone[epoch]
        for epoch in range(3, EPOCHS):
            assert taken(two) == alone[epoch]
        until(lambda: job.status().state.ended)
        with pytest.raises(essp.EsspError, match="epochs, and all of them are over"):
            taken(one)


def test_a_later_process_of_the_same_name_replaces_one(
    job: Embedded, alone: list[list[tuple[int, ...]]], kafka_url: str, redis_url: str
) -> None:
    with connect(job, "one", kafka_url, redis_url) as first, connect(job, "one", kafka_url, redis_url) as second:
        batches = iter(first)
        next(batches)
        second.set_epoch(0)
        assert taken(second) == alone[0]
        with pytest.raises(essp.EsspError, match="another process has joined"):
            taken(batch for epoch in (batches, *(first for _ in range(EPOCHS))) for batch in epoch)

"""A master that runs its own workers: it starts them, restarts those that die, and leaves none behind."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from essp.catalog.build import BuildOptions, build
from essp.servers.servers import RedisServer, S3Server
from essp_common.job.status import JobState
from tests.conftest import BUCKET
from tests.harness.brokers import kafka_broker
from tests.harness.journeys import job_text, make_videos
from tests.harness.waiting import LONGEST_S
from tests.integration.fleet import Api, Fleet, Process

pytestmark = pytest.mark.integration

TOKEN = "a-secret"
POOLS = {"decoder": 1, "extractor.flow": 1, "aggregator": 1}


@dataclass
class LoneMaster:
    """A master alone."""

    fleet: Fleet
    master: Process
    api: Api
    root: str

    def get(self, path: str) -> Any:
        """What the API answers."""
        response = httpx.get(f"{self.api.url}{path}", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=LONGEST_S)
        assert response.status_code == 200, response.text
        return response.json()

    def workers(self, pool: str) -> int:
        """How many workers of a pool are up, by their heartbeats."""
        return next((p["ready"] for p in self.get("/v1/pools") if p["name"] == pool and p["busy"] is not None), 0)


@pytest.fixture
def lone(s3_server: S3Server, redis_server: RedisServer, tmp_path: Path) -> Iterator[LoneMaster]:
    make_videos(tmp_path / "videos")
    store_url = s3_server.store(BUCKET, uuid.uuid4().hex[:10])
    root = store_url.partition("?")[0]
    redis_server.execute("FLUSHALL")
    catalog = f"{root}/catalog.parquet"
    build((tmp_path / "videos").as_uri(), catalog, ("file:///", store_url), BuildOptions("folders"))
    with kafka_broker(tmp_path) as kafka:
        environment = {
            "ESSP_BUS": kafka.url,
            "ESSP_CACHE": redis_server.url,
            "ESSP_STORES": json.dumps([store_url, "file:///"]),
            "ESSP_API_TOKEN": TOKEN,
            "ESSP_DECODER_PROCESSES": "1",
            "ESSP_POOLS": "processes",
            "ESSP_POOL_SIZES": json.dumps(POOLS),
            "ESSP_RANKS": "2",
        }
        with Fleet(environment, tmp_path) as fleet:
            master = fleet.start("master", "--port", "0")
            api = Api(fleet, master, TOKEN)
            yield LoneMaster(fleet, master, api, root)
            api.close()


def test_a_job_needs_nothing_but_a_master(lone: LoneMaster) -> None:
    output = f"{lone.root}/runs/alone"
    text = job_text("alone", output=output, catalog=f"{lone.root}/catalog.parquet", budget="256KiB")
    assert lone.api.start(text) == 202
    lone.api.until("alone", "waits for its trainers", lambda s: "trainer.alone.rgb" in s.awaits and not s.counts.issued)
    lone.api.until("alone", "is being decoded", lambda status: status.counts.decoded > 0)
    decoder = next(p for p in _children(lone.master) if "decoder" in _arguments(p))  # there may be more by now
    os.kill(decoder, signal.SIGKILL)
    status = lone.api.until("alone", "has ended", lambda status: status.state.ended)
    assert status.state is JobState.COMPLETED, status.reason
    told = [(event["pool"], event["message"]) for event in lone.get("/v1/pools/events")]
    assert any(f"-{decoder} of decoder ended with -9; another is started" in message for _, message in told), told
    assert ("trainer.alone.rgb", "0 -> 1 ranks of 2") in told, told
    assert {p["name"] for p in lone.get("/v1/pools")} >= set(POOLS)


def test_workers_leave_when_their_master_is_killed(lone: LoneMaster) -> None:
    lone.fleet.until("a decoder is up", lambda: lone.workers("decoder") or None)
    lone.fleet.start("decoder")  # one of nobody's pool, which stays
    lone.master.popen.kill()
    lone.fleet.gone(lone.master, -signal.SIGKILL)
    lone.fleet.until("all have left", lambda: not lone.master.members() or None)


def _children(process: Process) -> list[int]:
    """Processes that a process has started itself."""
    found = []
    for pid in process.members():
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue
        if parent == process.popen.pid:
            found.append(pid)
    return found


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except FileNotFoundError:
        return []

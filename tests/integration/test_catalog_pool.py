"""A catalog that decoders build is the one that a single process builds, byte for byte, whoever is killed meanwhile."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from essp.catalog.build import BuildOptions, build
from essp.servers.servers import RedisServer
from essp_common.cache.port import job_prefix
from essp_common.runtime.failpoints import VARIABLE
from essp_common.wiring import open_cache
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.brokers import kafka_broker
from tests.integration.fleet import Fleet

pytestmark = pytest.mark.integration

VIDEOS = 12


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Videos of two classes, and two files that are none."""
    folder = tmp_path / "videos"
    for number in range(VIDEOS):
        (folder / f"class{number % 2}").mkdir(parents=True, exist_ok=True)
        name = f"{number}.{'mkv' if number % 3 else 'mp4'}"
        intervals = (1, 1, 3) if number == 5 else (1,)
        encoding = Encoding(gop=5, bframes=2, intervals=intervals)
        write_video(folder / f"class{number % 2}" / name, numbered(12 + number, 32, 32), encoding)
    whole = (folder / "class0" / "0.mp4").read_bytes()
    (folder / "class0" / "cut.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    (folder / "class1" / "text.mp4").write_text("this is no video", encoding="ascii")
    return folder


def test_decoders_and_builds_that_are_killed_lose_nothing(
    videos: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.execute("FLUSHALL")
    root = f"file://{tmp_path}"
    with kafka_broker(tmp_path) as kafka:
        environment = {
            "ESSP_BUS": kafka.url,
            "ESSP_CACHE": redis_server.url,
            "ESSP_STORES": json.dumps([root]),
            "ESSP_DECODER_PROCESSES": "1",
        }
        command = ("catalog", "build", str(videos), "--connect", "--source", "folders", "--out")
        with Fleet(environment, tmp_path) as fleet:
            armed = fleet.start("decoder", **{VARIABLE: "decoder.probed:3:kill"})
            killed = fleet.start(*command, f"{tmp_path}/pool.parquet", **{VARIABLE: "catalog.read:6:kill"})
            fleet.gone(armed, -signal.SIGKILL)
            fleet.start("decoder")
            fleet.start("decoder")
            fleet.gone(killed, -signal.SIGKILL)
            fleet.run(*command, f"{tmp_path}/pool.parquet")
        cache = open_cache(redis_server.url)
        left = cache.purge(job_prefix("catalog-")[:-1])
        cache.close()
    build(f"file://{videos}", f"{root}/alone.parquet", [root], BuildOptions("folders"))
    assert (tmp_path / "pool.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert left <= VIDEOS + 2, "what was asked for by the build that was killed, which nobody can free"

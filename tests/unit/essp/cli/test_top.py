"""`essp top` against an API that is being served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from essp.cli import rest
from essp_common import topics
from essp_common.errors import Unavailable
from essp_common.pb.v1.messages_pb2 import Gpu, Heartbeat, Machine, Progress
from tests.harness.command_line import essp
from tests.harness.serving import Served


def beat(served: Served, worker: str, pool: str, machine: Machine) -> None:
    """A worker of this pool reports."""
    progress = Progress(worker=worker, heartbeat=Heartbeat(pool=pool, gauges={"busy": 0.75}, machine=machine))
    served.adapters.bus.publish(topics.PROGRESS, b"", progress.SerializeToString())
    served.master.step(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("top")) as found:
        yield found


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_what_pools_do_and_use(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # a narrow table would be cut
    nobody = essp("top", "--server", served.url)
    assert (nobody.stdout, nobody.exit_code) == ("", 0)
    assert "no worker has reported yet" in nobody.output
    served.start()
    here: dict[str, Any] = {"host": "a", "cores": 4, "memory_bytes": 2**30, "memory_limit_bytes": 2**32}
    beat(served, "w1", "decoder", Machine(process=1, cpu=1.5, disk_free_bytes=2**31, disk_bytes=2**33, **here))
    lines = essp("top", "--server", served.url).output
    assert " ".join(rows(lines)[0]) == "POOL UP BUSY CLIPS/S QUEUED CORES MEMORY DISK FREE", "no column for GPUs"
    assert rows(lines)[1][:4] == ["decoder", "1", "75", "%"]
    assert "1.5 of 4" in lines
    assert "1.0 GiB" in lines
    gpu = Gpu(id="g", name="H200", busy=0.5, memory_bytes=2**30, watts=312)
    beat(served, "w2", "trainer.small.rgb", Machine(process=2, gpus=[gpu], **here))
    lines = essp("top", "--server", served.url).output
    assert rows(lines)[0][-6:] == ["GPUS", "GPU", "BUSY", "GPU", "MEMORY", "WATTS"]
    assert rows(lines)[-1][-6:] == ["1", "50", "%", "1.0", "GiB", "312"]
    lines = essp("top", "--processes", "--server", served.url).output
    assert "H200 50 %" in lines
    assert "1.0 GiB of 4.0 GiB" in lines
    told = json.loads(essp("top", "--json", "--server", served.url).output)
    assert {pool["pool"]: pool["gpu_watts"] for pool in told["pools"]}["trainer.small.rgb"] == 312


def test_it_watches_on_while_the_master_is_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    real, answers = rest.ask, iter([True, False, True, KeyboardInterrupt])

    def ask(*how: Any) -> Any:
        answer = next(answers)
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        if not answer:
            raise Unavailable("away")
        return real(*how)

    monkeypatch.setattr("essp.cli.top.ask", ask)
    monkeypatch.setattr("essp.cli.top.time.sleep", lambda s: None)
    told = essp("top", "--watch", "--json", "--server", served.url).output
    assert len([json.loads(line) for line in told.splitlines() if line.startswith("{")]) == 2


def test_an_address_that_is_no_master_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no master answers"):
        essp("top", "--server", "http://127.0.0.1:9")

"""The newest lines of all workers, as the master holds them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import LogLine, LogLines, Progress
from essp_master.worker_logs import WorkerLogs
from tests.harness.command_line import essp
from tests.harness.serving import Served


def lines(*levels: str, pool: str = "decoder", job: str = "", left_out: int = 0) -> LogLines:
    said = [LogLine(time=1e9, level=level, event=f"{level} {k}", job=job) for k, level in enumerate(levels)]
    return LogLines(pool=pool, lines=said, left_out=left_out)


def events(logs: WorkerLogs, most: int = 100, **only: str | int) -> list[str]:
    return [line.event for line in logs.newest(most, **only)]  # type: ignore[arg-type]


def test_lines_are_found_by_level_job_pool_and_worker() -> None:
    logs = WorkerLogs(lambda: 0)
    logs.note("w1", lines("INFO", "WARNING", "ERROR"))
    logs.note("w2", lines("CRITICAL", "INFO", pool="trainer.night.rgb", job="night"))
    assert events(logs) == ["INFO 0", "WARNING 1", "ERROR 2", "CRITICAL 0", "INFO 1"]
    assert events(logs, most=2) == ["CRITICAL 0", "INFO 1"]
    assert events(logs, level="WARNING") == ["WARNING 1", "ERROR 2", "CRITICAL 0"]
    assert events(logs, level="ERROR", worker="w1") == ["ERROR 2"]
    assert events(logs, job="night") == events(logs, pool="trainer") == events(logs, pool="trainer.night.rgb")
    assert events(logs, pool="train") == []
    assert events(logs, after=logs.newest(2)[0].id) == ["INFO 1"]
    assert [line.id for line in logs.newest(10)] == [1, 2, 3, 4, 5]


def test_much_that_is_said_does_not_push_out_what_went_wrong() -> None:
    logs = WorkerLogs()
    logs.note("w1", lines("ERROR"))
    for _ in range(100):
        logs.note("w2", lines(*["INFO"] * 100))
    assert len(logs.newest(10**6)) == 5001
    assert events(logs, level="WARNING") == ["ERROR 0"]


def test_lines_that_were_left_out_are_told_of() -> None:
    logs = WorkerLogs()
    logs.note("w1", lines("INFO", left_out=1234))
    assert events(logs) == ["1,234 lines before the next one were left out: more than can be sent", "INFO 0"]


@pytest.mark.parametrize("later_s", [1001, 999])
def test_a_reader_of_an_earlier_master_misses_nothing_of_a_later_one(later_s: float) -> None:
    """Which goes on with higher ids, unless its clock is behind."""
    earlier, later = WorkerLogs(lambda: 1000), WorkerLogs(lambda: later_s)
    earlier.note("w", lines("INFO"))
    later.note("w", lines("INFO"))
    assert later.newest(1, after=earlier.newest(1)[0].id)


@pytest.mark.parametrize("time_s", [math.nan, math.inf, -1e30, 1e30])
def test_what_nobody_can_mean_is_held_within_bounds(time_s: float) -> None:
    logs = WorkerLogs()
    strange = LogLine(time=time_s, level="x" * 10**4, event="y" * 10**4, thread="z" * 10**4, job="j" * 10**4)
    logs.note("w" * 10**4, LogLines(pool="p" * 10**4, lines=[strange] * 300))
    kept = logs.newest(10**6)
    assert len(kept) == 200
    assert {line.level for line in kept} == {"INFO"}
    assert all(len(line.model_dump_json()) < 3000 for line in kept)


def test_they_are_shown_by_the_api_and_in_the_terminal(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        assert "nothing of this kind was logged" in essp("logs", "--server", served.url).output
        for message in (lines("INFO", "ERROR", job="night"), lines("INFO", pool="extractor.flow")):
            served.adapters.bus.publish(topics.PROGRESS, b"", Progress(worker="w1", logs=message).SerializeToString())
        served.master.step(1)
        found = served.client.get("/v1/logs", params={"job": "night", "level": "WARNING"}).json()
        assert [(line["event"], line["pool"], line["time"]) for line in found] == [
            ("ERROR 1", "decoder", "2001-09-09T01:46:40Z")
        ]
        assert served.client.get("/v1/logs", params={"level": "LOUD"}).status_code == 422
        shown = essp("logs", "--server", served.url).output.splitlines()
        assert shown[1] == "2001-09-09T01:46:40  ERROR    w1, decoder: ERROR 1 (night)"
        one = essp("logs", "--server", served.url, "--pool", "extractor", "--json").output
        assert json.loads(one)["pool"] == "extractor.flow"
        with pytest.raises(ConfigError):
            essp("logs", "--server", "nowhere")

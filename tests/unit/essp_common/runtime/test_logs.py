"""Logs: for people and for collectors, with what a line is about, and not the same line for ever."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipReady, ClipRef, DecodeSeed, FeatureReady, Progress, Seed
from essp_common.runtime import logs, process
from essp_common.runtime.config import Settings
from essp_engine.worker.log_context import log_context
from tests.harness.refused import refused

log = logging.getLogger("essp.test")

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def bare_root() -> Iterator[None]:
    """Without the handlers of pytest, which would be closed."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    root.handlers.clear()
    yield
    root.handlers[:] = handlers


@pytest.fixture
def container(capsys: pytest.CaptureFixture[str]) -> Callable[[], Lines]:
    """Sets up the logs of a decoder in a container, and gives what it has logged."""

    def begin() -> Lines:
        process.set_up_logging(Settings(log_format="json", worker="w-1"), "decoder", job_id="demo")
        return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return begin


def test_json_is_one_object_a_line_on_stdout(container: Callable[[], Lines]) -> None:
    collected = container()
    try:
        raise ValueError("inner")
    except ValueError:
        log.exception("it %s", "failed\nbadly")
    (line,) = collected()
    assert (line["level"], line["event"]) == ("ERROR", "it failed\nbadly")
    assert (line["pool"], line["worker"], line["job_id"]) == ("decoder", "w-1", "demo")
    assert line["ts"].endswith("Z")
    assert "ValueError: inner" in line["error"]


def test_a_file_name_that_is_no_text_costs_no_line(
    container: Callable[[], Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, "utf-8", "strict", write_through=True))
    container()
    log.warning("%s cannot be read", os.fsdecode(b"a\xff.mp4"))
    assert json.loads(written.getvalue().decode())["event"] == r"a\udcff.mp4 cannot be read"


def test_a_line_says_what_it_is_about(container: Callable[[], Lines]) -> None:
    collected = container()
    with logs.bound(lambda: {"job_id": "other", "seed_id": "train/0/7"}):
        log.info("within")
        log.info("tried", extra={"attempt": 2})
    log.info("outside")
    within, tried, outside = collected()
    assert (within["job_id"], within["seed_id"]) == ("other", "train/0/7")
    assert (tried["seed_id"], tried["attempt"]) == ("train/0/7", 2)
    assert (outside["job_id"], "seed_id" in outside) == ("demo", False)


def test_what_it_is_about_is_asked_only_when_something_is_said(container: Callable[[], Lines]) -> None:
    collected = container()

    def about() -> dict[str, Any]:
        raise AssertionError("nothing was said")

    with logs.bound(about):
        log.debug("nothing")
    assert collected() == []


def test_a_services_text_names_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    process.set_up_logging(Settings(log_level="warning", log_format="text", worker="w"), "decoder")
    log.info("quiet")
    with logs.bound(lambda: {"job_id": "demo"}):
        log.warning("loud")
    said = capsys.readouterr()
    assert said.out == ""
    assert "quiet" not in said.err
    assert "WARNING w MainThread: loud job_id=demo" in said.err


def test_auto_is_text_for_people_and_json_for_collectors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(pool: str) -> tuple[str, str]:
        logs.set_up("INFO", "auto", "w", pool)
        log.info("hello")
        captured = capsys.readouterr()
        return captured.out, captured.err

    out, err = said("decoder")
    assert (json.loads(out)["event"], err) == ("hello", "")
    out, err = said("")
    assert out == "", "stdout is for what a command prints"
    assert err.endswith(": hello\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    out, err = said("decoder")
    assert out == ""
    assert err.endswith(": hello\n")


def test_unknown_log_level_is_a_configuration_error() -> None:
    with refused("log_level", "unknown"):
        process.set_up_logging(Settings(log_level="LOUD"))


def test_libraries_are_quiet_and_warnings_and_dying_threads_are_lines(container: Callable[[], Lines]) -> None:
    collected = container()
    logging.getLogger("kafka.conn").info("connecting")
    logging.getLogger("leaderelection").info("leader has successfully acquired lease")
    before = threading.excepthook
    with logs.bridged(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=lambda: 1 // 0, name="lane-3")
        thread.start()
        thread.join()
    assert threading.excepthook is before
    warned, died = collected()
    assert "DeprecationWarning: old" in warned["event"]
    assert (warned["level"], died["level"]) == ("WARNING", "CRITICAL")
    assert "lane-3" in died["event"]
    assert "ZeroDivisionError" in died["error"]


# --- the same again and again ---


class Storm:
    """A handler whose clock is ours."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stream = StringIO()
        self.handler = logs._Handler(self.stream, lambda: self.now_s)
        self.handler.setFormatter(logs._JsonLines({"pool": "p", "worker": "w"}))
        self.logger = logging.Logger("kafka.conn")
        self.logger.addHandler(self.handler)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_a_storm_is_a_few_lines_and_a_number() -> None:
    storm = Storm()
    for number in range(60):
        storm.now_s = number / 2
        storm.logger.error("node %d: connecting failed after %.1f s", number, number / 3)
    assert len(storm.lines()) == 3
    storm.logger.error("something else")
    storm.now_s = 61.0
    storm.logger.info("hello")
    *_, other, last, hello = storm.lines()
    assert (other["event"], hello["event"]) == ("something else", "hello")
    assert last["event"] == "node 59: connecting failed after 19.7 s (and 56 more like this in the last minute)"
    assert last["more"] == 56
    storm.logger.error("node 1: connecting failed after 0.1 s")
    assert storm.lines()[-1]["event"].startswith("node 1:"), "a minute later it is news again"


def test_each_job_is_told_of() -> None:
    storm = Storm()
    for number in range(10):
        storm.logger.error("job run%d cannot be fused", number, extra={"job_id": f"run{number}"})
    assert len(storm.lines()) == 10


def test_what_was_left_out_is_said_at_the_end() -> None:
    storm = Storm()
    for _ in range(5):
        storm.logger.warning("away")
    storm.handler.close()
    assert [line["event"] for line in storm.lines()] == ["away"] * 3 + [
        "away (and 1 more like this in the last minute)"
    ]


def test_what_is_no_error_is_never_left_out() -> None:
    storm = Storm()
    for _ in range(10):
        storm.logger.info("job started")
    assert len(storm.lines()) == 10


def test_only_so_many_kinds_are_remembered() -> None:
    repetition = logs.Repetition(kinds=10)
    for letter in "abcdefghijklmnopqrst":
        record = logging.LogRecord("x", logging.ERROR, "", 0, letter, (), None)
        repetition.due(0.0)
        assert repetition.admits(record, 0.0)
    assert len(repetition._seen) == 11


# --- what messages are about ---

CLIP = ClipRef(job="demo", purpose=TRAIN, epoch=2, index=7)


@pytest.mark.parametrize(
    ("topic", "message", "about"),
    [
        (topics.CLIPS, ClipReady(clip=CLIP), {"job_id": "demo", "epoch": 2, "seed_id": "train/2/7"}),
        (topics.features("flow"), FeatureReady(clip=CLIP), {"job_id": "demo", "epoch": 2, "seed_id": "train/2/7"}),
        (
            topics.SEEDS,
            DecodeSeed(job="demo", purpose=TRAIN, epoch=2, seeds=[Seed(index=7)]),
            {"job_id": "demo", "epoch": 2, "seed_id": "train/2/7"},
        ),
        (
            topics.SEEDS,
            DecodeSeed(job="demo", purpose=TRAIN, epoch=2, seeds=[Seed(index=7), Seed(index=9)]),
            {"job_id": "demo", "epoch": 2, "unit_id": "train/2/7+1"},
        ),
        (topics.PROGRESS, Progress(job="demo"), {"job_id": "demo"}),
        (topics.DEADLETTER, Progress(job="demo"), {}),
    ],
)
def test_what_a_message_is_about(topic: str, message: Any, about: dict[str, Any]) -> None:
    assert log_context(Record(topic, 0, 0, b"", message.SerializeToString())) == about


def test_what_is_no_message_is_about_nothing() -> None:
    assert log_context(Record(topics.CLIPS, 0, 0, b"", b"\xff\xff\xff")) == {}

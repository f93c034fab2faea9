"""Conditions begin, last and end; each process tells of its own, in its readiness, metrics and log."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from essp_common.runtime import conditions, logs
from essp_common.runtime.conditions import Conditions, Lasting, Subject
from essp_common.runtime.troubles import Kind
from tests.harness.fleet import Clock

SILENT: Subject = (Kind.CACHE_SILENT, "decoder")
FULL: Subject = (Kind.STORAGE_FULL, "master")


class Day:
    """A clock of dates."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def test_a_condition_keeps_its_beginning_and_takes_new_words() -> None:
    day, wrong = Day(), {SILENT: "for 15 s"}
    present = Conditions(lambda: wrong, now=day)
    begun = day.now
    present.look()
    day.now += timedelta(seconds=5)
    wrong[SILENT] = "for 20 s"
    wrong[FULL] = "no room"
    assert [(it.kind, it.words, it.since) for it in present.look()] == [
        (Kind.CACHE_SILENT, "for 20 s", begun),
        (Kind.STORAGE_FULL, "no room", day.now),
    ]
    del wrong[SILENT]
    assert [it.kind for it in present.look()] == [Kind.STORAGE_FULL]


def test_its_beginning_and_its_end_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {SILENT: "redis does not answer"}
    present = Conditions(lambda: wrong)
    with caplog.at_level(logging.INFO):
        present.look()
        present.look()
        wrong.clear()
        present.look()
        present.look()
    assert caplog.messages == [
        "cache-silent: decoder: redis does not answer",
        "cache-silent: decoder: over",
    ]


def test_a_source_that_fails_hides_nothing_of_the_others() -> None:
    def broken() -> dict[Subject, str]:
        raise RuntimeError("defect")

    assert [it.kind for it in Conditions(broken, lambda: {FULL: "no room"}).look()] == [Kind.STORAGE_FULL]


def test_only_what_lasts_is_told() -> None:
    clock = Clock()
    lasting = Lasting(20, clock)
    assert not lasting.of({SILENT: "a"})
    clock.now_s += 19
    assert not lasting.of({SILENT: "a"})
    clock.now_s += 1
    assert lasting.of({SILENT: "a"}) == {SILENT: "a"}
    assert not lasting.of({})
    assert not lasting.of({SILENT: "a"}), "it has begun again"


def test_readiness_tells_what_it_means_and_what_to_do() -> None:
    present = Conditions(conditions.of("decoder", lambda: {Kind.STORAGE_FULL: "/secret/place is full"}))
    text = conditions.summary(present.look())
    assert text.startswith("not ready: storage-full: decoder: no room is left")
    assert "free some" in text
    assert "/secret/place" not in text, "anybody may ask for it"
    assert not conditions.summary(())
    upgrade = Conditions(conditions.of("decoder", lambda: {Kind.MIXED_RELEASES: "two"}))
    assert not conditions.summary(upgrade.look()), "or it never becomes ready, and the upgrade waits for that"


class FullDisk:
    """A stream on a disk that may be full."""

    full = True

    def write(self, text: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        """Nothing is held back."""


@pytest.fixture
def disk() -> Iterator[FullDisk]:
    stream = FullDisk()
    handler = logs._Handler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)


def test_log_lines_that_cannot_be_written_are_told_of(disk: FullDisk, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("essp").warning("lost")
    assert "No space left on device" in logs.troubles()[Kind.LOGS_LOST]
    assert "Traceback" not in capsys.readouterr().err, "a line for each line that is lost would fill the disk, too"
    disk.full = False
    logging.getLogger("essp").warning("written")
    assert not logs.troubles()

"""No thread that is to last ends unseen."""

from __future__ import annotations

import threading

import pytest

from essp_common.runtime import threads
from essp_common.runtime.metrics import UNEXPECTED
from tests.harness.waiting import LONGEST_S


def counted(name: str) -> float:
    return float(UNEXPECTED.labels(name)._value.get())


def test_what_lasts_begins_again_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_FIRST_PAUSE_S", 0.0)
    before, runs, ended = counted("lasts"), list[int](), threading.Event()

    def run() -> None:
        runs.append(len(runs))
        if len(runs) < 4:
            raise [ValueError("a"), TypeError("b"), MemoryError("c")][runs[-1]]

    thread = threads.lasting("lasts", run, ended, of="job")
    assert (thread.name, thread.daemon) == ("lasts-job", True)
    thread.start()
    thread.join(LONGEST_S)
    assert runs == [0, 1, 2, 3]
    assert counted("lasts") == before + 3


def test_what_is_over_does_not_begin_again() -> None:
    ended, runs = threading.Event(), list[int]()

    def run() -> None:
        runs.append(1)
        ended.set()
        raise KeyError("late")

    thread = threads.lasting("lasts", run, ended)
    thread.start()
    thread.join(LONGEST_S)
    assert runs == [1]


def test_who_guards_a_thread_hears_of_its_error(caplog: pytest.LogCaptureFixture) -> None:
    before, failed = counted("guarded"), threading.Event()

    def run() -> None:
        raise KeyError("a defect")

    for thread in (threads.guarded("guarded", run, failed.set), threads.guarded("guarded", lambda: None)):
        thread.start()
        thread.join(LONGEST_S)
    assert failed.is_set()
    assert counted("guarded") == before + 1
    assert "a defect" in caplog.text

"""Requests that come again while the first one is still being answered."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from essp_common.errors import Unavailable
from essp_master.api import idempotency
from essp_master.api.idempotency import Answers
from tests.harness.waiting import LONGEST_S


def test_whoever_asks_again_meanwhile_gets_the_answer_of_the_first() -> None:
    answers: Answers[int] = Answers(int)
    begun, go = threading.Event(), threading.Event()
    done: list[int] = []

    def act() -> int:
        begun.set()
        assert go.wait(LONGEST_S)
        done.append(1)
        return len(done)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answers.once, "key", "asked", act)
        assert begun.wait(LONGEST_S)
        again = pool.submit(answers.once, "key", "asked", act)
        go.set()
        assert (first.result(LONGEST_S), again.result(LONGEST_S)) == (1, 1)


def test_whoever_asks_again_while_the_first_fails_acts_itself() -> None:
    answers: Answers[str] = Answers(str)
    begun, go = threading.Event(), threading.Event()

    def fail() -> str:
        begun.set()
        assert go.wait(LONGEST_S)
        raise ValueError("no")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answers.once, "key", "asked", fail)
        assert begun.wait(LONGEST_S)
        again = pool.submit(answers.once, "key", "asked", lambda: "done")
        go.set()
        assert again.result(LONGEST_S) == "done"
        assert isinstance(first.exception(LONGEST_S), ValueError)
    assert answers.once("key", "asked", lambda: "once more") == "done"


def test_who_asks_for_an_answer_that_does_not_come_is_told_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "PATIENCE_S", 0.0)
    answers: Answers[str] = Answers(str)

    def ask_again() -> str:
        with pytest.raises(Unavailable):
            answers.once("key", "asked", lambda: "twice")
        return "once"

    assert answers.once("key", "asked", ask_again) == "once"


def test_what_is_remembered_of_a_large_answer_is_small() -> None:
    answers: Answers[list[str]] = Answers(list[str])
    large = ["train, epoch 7: over"] * 10_000
    assert answers.once("warm", "asked", lambda: large) == large
    tracemalloc.start()
    try:
        for key in range(20):
            answers.once(str(key), "asked", lambda: list(large))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000, "20 lists of 10,000 take 1.6 MB"
    assert answers.once("7", "asked", list) == large

"""Calls are repeated while a server does not answer, and nothing else is swallowed."""

from __future__ import annotations

import pytest

from essp_common.errors import PermanentError, Unavailable
from essp_common.runtime.retry import Outage, retry_transient, wait_out


class Flaky:
    """Fails a number of times, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self) -> str:
        if self.failures:
            self.failures -= 1
            raise Unavailable("no answer", retry_after_s=0.5)
        return "answer"


def test_a_call_is_repeated_until_it_is_answered() -> None:
    waits: list[float] = []
    assert retry_transient(Flaky(3), lambda: False, waits.append) == "answer"
    assert waits == [0.5, 0.5, 0.5]


def test_the_last_error_is_raised_once_the_caller_leaves() -> None:
    waits: list[float] = []
    with pytest.raises(Unavailable):
        retry_transient(Flaky(9), lambda: len(waits) == 2, waits.append)
    assert waits == [0.5, 0.5]


def test_one_error_that_nobody_expected_is_no_end() -> None:
    outcomes: list[Exception | str] = [KeyError("a"), KeyError("b"), "answer"]

    def call() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retry_transient(call, lambda: False, lambda _: None) == "answer"
    outcomes += [KeyError("c"), KeyError("d"), KeyError("e"), "late"]
    with pytest.raises(KeyError, match="e"):
        retry_transient(call, lambda: False, lambda _: None)


def test_a_block_is_left_after_a_wait() -> None:
    waits: list[float] = []
    answers: list[str] = []
    outage, call = Outage("test", waits.append), Flaky(2)
    while not answers:
        with outage:
            answers.append(call())
    assert (answers, waits) == (["answer"], [0.5, 0.5])


def test_waits_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    waits: list[float] = []
    outage = Outage("test", waits.append, longest_wait_s=3.0)
    for call in (Flaky(5), Flaky(1)):
        while call.failures:
            with outage:
                call()
        with outage:
            call()
    assert waits == [0.5, 1.0, 2.0, 3.0, 3.0, 0.5]


def test_an_outage_is_given_up_after_its_time_and_another_one_gets_its_own() -> None:
    waits: list[float] = []
    outage = Outage("test", waits.append, longest_wait_s=4.0, patience_s=6.0, clock=lambda: sum(waits))
    assert wait_out(Flaky(3), outage) == "answer"
    with pytest.raises(Unavailable, match="no answer; given up after 6 s"):
        wait_out(Flaky(9), outage)
    assert waits == [0.5, 1.0, 2.0, 0.5, 1.0, 2.0, 2.5]


def test_other_errors_pass() -> None:
    with pytest.raises(PermanentError), Outage("test", lambda _: None):
        raise PermanentError("it will never work")

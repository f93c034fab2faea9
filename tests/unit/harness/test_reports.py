"""A failed test is reported, whatever is in its message."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from execnet.gateway_base import dumps

from tests.harness.reports import EveryFailureReported, PassesReportedInShort, sendable


def test_only_what_cannot_be_sent_is_changed() -> None:
    report = {"longrepr": ("a.py", "sent \ud800"), "sections": [("out", "\U0001f600")], "duration": 0.5, "when": None}
    assert sendable(report) == {**report, "longrepr": ("a.py", "sent \\ud800")}
    odd = {"properties": [("path", Path("a")), ("loss", np.float64(1))], "text": np.str_("b")}
    assert sendable(odd)["text"] == "b"
    dumps(sendable(odd))


def test_a_failure_that_cannot_be_formatted_is_one() -> None:
    def failing() -> None:
        raise AssertionError("what the test says")

    call: Any = pytest.CallInfo.from_call(failing, "call")
    item: Any = SimpleNamespace(nodeid="a.py::test", location=("a.py", 1, "test"))
    making = EveryFailureReported().pytest_runtest_makereport(item, call)
    next(making)
    with pytest.raises(StopIteration) as made:
        making.throw(KeyError("what the format says"))
    report = made.value.value
    assert report.failed
    assert "what the test says" in report.longreprtext
    assert "what the format says" in report.longreprtext


@pytest.mark.parametrize(("outcome", "asked", "kept"), [("passed", "a", 0), ("passed", "P", 1), ("failed", "a", 1)])
def test_the_logs_of_what_passed_are_sent_if_they_are_asked_for(outcome: Any, asked: str, kept: int) -> None:
    report = pytest.TestReport("a.py::test", ("a.py", 1, "test"), {}, outcome, None, "call", [("log", "text")])
    config: Any = SimpleNamespace(option=SimpleNamespace(reportchars=asked))
    PassesReportedInShort().pytest_report_to_serializable(config, report)
    assert len(report.sections) == kept

"""What a run of the tests came to, read from what pytest wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.repeat import Run, busy_loops, summarized, table

RESULTS = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="5">
<testcase classname="tests.unit.test_a" name="test_one" time="0.1" />
<testcase classname="tests.unit.test_a" name="test_two[a - b]" time="0.1">
<failure message="no">no</failure></testcase>
<testcase classname="tests.unit.test_b.TestPort" name="test_three" time="0.1" />
<testcase classname="tests.unit.test_b.TestPort" name="test_three" time="0.1">
<error message="failed on teardown">left behind</error></testcase>
<testcase classname="tests.unit.test_b" name="test_four" time="0.1">
<skipped message="not here" /></testcase>
</testsuite></testsuites>
"""
FAILED = ("tests/unit/test_a.py::test_two[a - b]", "tests/unit/test_b.py::TestPort::test_three")


def test_failures_and_errors_are_told_by_the_name_that_pytest_takes(tmp_path: Path) -> None:
    (tmp_path / "run.xml").write_text(RESULTS)
    made = summarized(3, True, 90.0, 2, tmp_path / "run.xml")
    assert made == Run(3, True, 1, FAILED, 90.0)
    assert not made.sound


@pytest.mark.parametrize(
    ("results", "status"),
    [
        (None, 2),
        ("<testsuites><testsuite>", 1),
        ("<testsuites/>", 0),
        (RESULTS.replace("failure", "passed").replace("error", "passed"), 1),
        (RESULTS, 0),
    ],
    ids=["not written", "not whole", "no tests", "status without a failure", "failure without a status"],
)
def test_a_run_that_did_not_come_to_its_end_is_no_success(tmp_path: Path, results: str | None, status: int) -> None:
    if results is not None:
        (tmp_path / "run.xml").write_text(results)
    made = summarized(1, False, 1.0, status, tmp_path / "run.xml")
    assert not made.finished
    assert not made.sound


def test_all_runs_make_a_table() -> None:
    runs = [Run(1, False, 2600, (), 720.0), Run(2, True, 2598, FAILED, 1500.0), Run(3, True, 0, (), 5.0, False)]
    assert [run.sound for run in runs] == [True, False, False]
    assert table(runs).splitlines()[2:] == [
        "| 1 | none | 2600 | 0 | 12.0 |  |",
        f"| 2 | 2 busy loops | 2598 | 2 | 25.0 | `{FAILED[0]}`, `{FAILED[1]}` |",
        "| 3 | 2 busy loops | 0 | 0 | 0.1 | did not come to its end |",
    ]


@pytest.mark.processes
def test_busy_loops_end_with_their_block() -> None:
    with busy_loops(2) as loops:
        assert len(loops) == 2
        for pid in loops:
            os.kill(pid, 0)
    for pid in loops:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

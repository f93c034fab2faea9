"""Which state allows what, and what the events of a job say."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from essp_common.errors import Conflict
from essp_common.job import lifecycle
from essp_common.job.status import JobState
from essp_master.job.activity import Rate
from essp_master.job.events import EventLog
from tests.harness.waiting import LONGEST_S

P, Q, R, Z = JobState.PENDING, JobState.QUEUED, JobState.RUNNING, JobState.PAUSED
ENDS = C, F, S = JobState.COMPLETED, JobState.FAILED, JobState.STOPPED
ALLOWED = {
    *((P, state) for state in (Q, R, Z, F, S)),
    *((Q, state) for state in (R, Z, *ENDS)),
    *((R, state) for state in (Q, Z, *ENDS)),
    *((Z, state) for state in (Q, R, *ENDS)),
    *((end, state) for end in ENDS for state in (Q, R)),
}


@pytest.mark.parametrize("present", list(JobState))
@pytest.mark.parametrize("wanted", list(JobState))
def test_only_these_changes_are_possible(present: JobState, wanted: JobState) -> None:
    if present is wanted:
        assert lifecycle.change("j", present, wanted) is False
    elif (present, wanted) in ALLOWED:
        assert lifecycle.change("j", present, wanted) is True
    else:
        with pytest.raises(Conflict, match=f"job j is {present}"):
            lifecycle.change("j", present, wanted)


def test_events_are_numbered_and_the_oldest_go() -> None:
    log = EventLog(kept=3, now=lambda: 0.0)
    for number in range(5):
        log.add("warning", f"w{number}", {"n": number})
    assert [event.id for event in log.after(0)] == [3, 4, 5]
    assert [event.message for event in log.after(4)] == ["w4"]
    assert log.after(5) == []
    assert (log.first, log.last) == (1, 5)


def test_thousands_of_events_take_little_memory_and_are_read_as_they_were_written() -> None:
    """A master keeps those of all jobs under way, and of a hundred that have ended."""
    tracemalloc.start()
    try:
        log = EventLog(kept=1010, now=lambda: 0.0)
        for epoch in range(1234):
            log.add("report", f"rgb: epoch {epoch}: loss 0.5", {"trainer": "rgb", "metrics": {"loss": epoch / 3}})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1010 * 200, "as objects, they are more than 1 kB each"
    events = log.after(0)
    assert [event.id for event in events] == list(range(225, 1235))
    assert [event.data["metrics"]["loss"] for event in events] == [epoch / 3 for epoch in range(224, 1234)]
    for last in (224, 225, 300, 1199, 1200, 1201, 1233, 1234):
        assert log.after(last) == [event for event in events if event.id > last]


def test_the_log_of_a_later_master_goes_on_with_higher_numbers() -> None:
    earlier, later = (EventLog(now=lambda at_s=at_s: at_s) for at_s in (1000.0, 1001.0))  # type: ignore[misc]
    for log in (earlier, later):
        log.add("warning", "w", {})
    assert [event.id for event in later.after(earlier.last)] == [later.first] == [later.last]


def test_a_reader_of_a_master_whose_clock_was_ahead_misses_nothing_of_the_next() -> None:
    earlier, later = (EventLog(now=lambda at_s=at_s: at_s) for at_s in (1001.0, 1000.0))  # type: ignore[misc]
    for log in (earlier, later):
        log.add("warning", "w", {})
    assert [event.id for event in later.after(earlier.last)] == [later.last]


def test_a_reader_waits_for_the_next_event() -> None:
    log = EventLog(now=lambda: 0.0)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(event.id for event in log.after(0, timeout_s=LONGEST_S)))
    reader.start()
    log.add("warning", "w", {})
    reader.join()
    assert found == [1]


def test_a_rate_forgets_what_is_long_ago() -> None:
    rate = Rate(window_s=10)
    for second in range(5):
        rate.add(20, 100.0 + second)
    assert rate.per_s(105.0) == 20
    assert rate.per_s(112.0) == pytest.approx(6)
    assert rate.per_s(200.0) == 0

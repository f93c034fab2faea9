"""The status of a job that has ended, from what it left: its history, or only its last command."""

from __future__ import annotations

from datetime import UTC, datetime

from essp_common.errors import ConfigError
from essp_common.job import status
from essp_common.job.spec import stored_spec
from essp_common.job.status import JobState, JobStatus, stored_status
from essp_common.pb.v1.messages_pb2 import Control

_ENDS = {
    Control.STOP: JobState.STOPPED,
    Control.COMPLETE: JobState.COMPLETED,
    Control.FAIL: JobState.FAILED,
}
"""The commands that end a job, with the resulting states."""


def past_status(text: str, where: str) -> JobStatus:
    """Parse the last status in a history. Raises `ConfigError` if this version cannot read it."""
    return without_events(stored_status(text, where))


def status_by_command(last: Control) -> JobStatus:
    """Return the status of an ended job about which only its last command is known."""
    try:
        spec = stored_spec(last.snapshot.spec_json, last.job)
    except ConfigError:
        spec = None
    now = datetime.now(UTC)
    return JobStatus(
        name=last.job,
        kind="train" if spec is None else spec.kind,
        state=_ENDS[last.command],
        reason=last.reason,
        output="" if spec is None else spec.output,
        created=now,
        ended=now,
        elapsed_s=0.0,
        progress=status.ProgressStatus(done=0, total=0, clips_per_s=0.0, eta_s=None, current=0),
        phases=(),
        credits=status.CreditStatus(budget_bytes=0, outstanding_bytes=0, outstanding_clips=0, waiting=False),
        cache=None,
        streams={} if spec is None else {name: stream.feature for name, stream in spec.streams.items()},
        backlog={},
        pools=(),
        trainers=(),
        counts=status.CountStatus(
            issued=0, decoded=0, extracted=0, delivered=0, failed=0, replaced=0, skipped=0, lost=0, reissued=0,
            released=0, redecoded=0, duplicates=0,
        ),
        failures=(),
        result=None,
        last_event=0,
        team=last.team,
        unit="video" if spec is None else spec.data.unit,
    )  # fmt: skip


def without_events(past: JobStatus) -> JobStatus:
    """Return the status of a job whose events are gone: a reader that waits for the last event would wait forever."""
    return past.model_copy(update={"last_event": 0, "first_event": 0})

"""The state of a job, its reason, and how long the job has been running. Time is passed in."""

from __future__ import annotations

from datetime import UTC, datetime

from essp_common.job import lifecycle
from essp_common.job.status import JobState


class JobLife:
    """The life of one job, from pending to its end."""

    def __init__(self, job: str) -> None:
        self._job = job
        self.state = JobState.PENDING
        self.reason = ""
        self.created = datetime.now(UTC)
        self.ended: datetime | None = None
        self._worked_s = 0.0
        self._resumed_s: float | None = None

    def enter(self, wanted: JobState, now_s: float, reason: str) -> bool:
        """Change the state. Returns False if the job is already in it. Raises `Conflict`."""
        if not lifecycle.change(self._job, self.state, wanted):
            return False
        if self._resumed_s is not None:
            self._worked_s += now_s - self._resumed_s
        self._resumed_s = now_s if wanted is JobState.RUNNING else None
        self.state, self.reason = wanted, reason
        if wanted.ended:
            self.ended = datetime.now(UTC)
        return True

    def elapsed_s(self, now_s: float) -> float:
        """Return the time for which the job was running."""
        return self._worked_s + (now_s - self._resumed_s if self._resumed_s is not None else 0.0)

    def follow(self, before: JobLife, now_s: float) -> None:
        """Continue the life of the previous run."""
        self.created, self._worked_s = before.created, before.elapsed_s(now_s)

    def restore(self, created_ms: int, worked_s: float) -> None:
        """Continue the life that a previous master has recorded."""
        self.created = datetime.fromtimestamp(created_ms / 1000, UTC)
        self._worked_s = worked_s

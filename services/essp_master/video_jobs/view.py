"""The status of a VideoJob, from the status of its job. Pure.

Conditions have the usual meanings: `Ready`: the job does what the VideoJob says (it runs, pauses as asked, or is
complete). `Progressing`: clips are on their way, or soon will be. `Degraded`: something keeps it from progress as
intended. `Complete`: it is done; `kubectl wait --for=condition=Complete` waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from essp_common.job.status import HeadlineStatus, JobState, JobStatus
from essp_common.quantities import percent
from essp_master.status.headline import headline
from essp_master.video_jobs.resource import Body, VideoJob

PHASES = {
    JobState.PENDING: "Pending",
    JobState.QUEUED: "Queued",
    JobState.RUNNING: "Running",
    JobState.PAUSED: "Paused",
    JobState.COMPLETED: "Completed",
    JobState.FAILED: "Failed",
    JobState.STOPPED: "Stopped",
}
PENDING, PAUSED, REFUSED, STOPPING = "Pending", "Paused", "Refused", "Stopping"
LIVELY = ("rate", "clipsDone", "bottleneck")
"""Fields that change all the time."""
_READY = ("Running", "Paused", "Completed")
_PROGRESSING = ("Pending", "Running")
_WORDS = 4096
"""Longest message."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a job from being as its VideoJob says."""

    reason: str
    """One word for a condition: `Invalid`, `NameTaken`, `Unavailable`."""
    words: str


def status_of(
    found: VideoJob, job: JobStatus | None, phase: str, now: datetime, trouble: Trouble | None = None, words: str = ""
) -> Body:
    """Return the status of a VideoJob. `job`: the status of its job, if there is one. `trouble`: what keeps the job
    from progress, or from being as the VideoJob says. `words`: why it is in this phase, if the job does not say so."""
    message = words or (trouble.words if trouble else "") or (_why(job) if job else "")
    if trouble is None and job is not None and job.state is JobState.FAILED:
        trouble = Trouble("Failed", job.reason)
    status: Body = {"observedGeneration": found.metadata.generation, "phase": phase, "message": message[:_WORDS]}
    for kept in ("acceptedGeneration", "startTime"):
        if kept in found.status:
            status[kept] = found.status[kept]
    if job is not None:
        status |= _figures(job)
    reason = trouble.reason if trouble and phase == REFUSED else phase
    conditions = {
        "Ready": (phase in _READY and not (trouble and phase == PAUSED), reason, message),
        "Progressing": (phase in _PROGRESSING, reason, message),
        "Degraded": (
            trouble is not None,
            trouble.reason if trouble else "AsExpected",
            trouble.words if trouble else "",
        ),
        "Complete": (phase == "Completed", reason, message),
    }
    status["conditions"] = [
        _condition(found, kind, holds, why, said[:_WORDS], now) for kind, (holds, why, said) in conditions.items()
    ]
    return status


def steady(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """A status without what changes all the time."""
    return {name: value for name, value in status.items() if name not in LIVELY}


def changes_worth_an_event(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Type, reason and message of what a person should know about a change of the status."""
    found = []
    phase = after["phase"]
    if phase != before.get("phase") or (phase == REFUSED and after["message"] != before.get("message")):
        found.append(("Warning" if phase in ("Failed", REFUSED) else "Normal", phase, _told(phase, after)))
    degraded, was = _degraded(after), _degraded(before)
    if degraded and degraded != was and phase not in ("Failed", REFUSED):
        found.append(("Warning", degraded[0], degraded[1]))
    if was and not degraded and phase == "Running" and before.get("phase") == "Running":
        found.append(("Normal", "Recovered", "nothing holds it up any more"))
    return found


_TOLD = {
    "Queued": "the job waits in the queue",
    "Running": "the job runs",
    "Paused": "the job is paused",
    "Completed": "the job is complete",
    "Failed": "the job has failed",
    "Stopped": "the job has stopped",
}


def _told(phase: str, status: Mapping[str, Any]) -> str:
    """A sentence about a new phase."""
    more = [status["message"]] if status["message"] else []
    if phase == "Completed":
        more = [status[name] for name in ("score", "model") if name in status]
    return ": ".join(filter(None, (_TOLD.get(phase), ", ".join(more))))


def _degraded(status: Mapping[str, Any]) -> tuple[str, str] | None:
    for condition in status.get("conditions", ()):
        if condition["type"] == "Degraded" and condition["status"] == "True":
            return condition["reason"], condition["message"]
    return None


def _condition(found: VideoJob, kind: str, holds: bool, reason: str, message: str, now: datetime) -> Body:
    status = "True" if holds else "False"
    known: Sequence[Body] = found.status.get("conditions", ())
    same = next((c for c in known if c["type"] == kind and c["status"] == status), None)
    since = same["lastTransitionTime"] if same else time_text(now)
    generation = found.metadata.generation
    return {"type": kind, "status": status, "reason": reason, "message": message} | {
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


def _figures(job: JobStatus) -> Body:
    """What a job has done so far."""
    progress, phases = job.progress, job.phases
    epochs = sum(phase.purpose == "train" for phase in phases)
    figures: Body = {"output": job.output, "clips": progress.total, "clipsDone": progress.done}
    if epochs:
        past = [phase for phase in phases[: progress.current + 1] if phase.purpose == "train"]
        figures["epoch"] = f"{max(1, len(past))}/{epochs}"
    if job.state is JobState.RUNNING:
        figures["rate"] = f"{progress.clips_per_s:.0f} clips/s"
        figures |= {"bottleneck": job.bottleneck.words} if job.bottleneck else {}
    if (best := headline(job.trainers, job.result.metrics if job.result else {})) is not None:
        figures["score"] = f"{_value(best)} of {best.of} on {best.split}"
        figures |= {"top1": percent(best.value)} if best.figure == "top1" else {}
    if job.result is not None:
        figures["model"] = job.result.uri.removesuffix("/manifest.json")
    if job.ended is not None:
        figures["completionTime"] = time_text(job.ended)
    return figures


def _value(best: HeadlineStatus) -> str:
    return f"top-1 {percent(best.value)}" if best.figure == "top1" else f"{best.figure} {best.value:.3f}"


def _why(job: JobStatus) -> str:
    if job.awaits:
        return f"it waits for a worker of {', '.join(job.awaits)}"
    return job.queue.reason if job.queue else job.reason


def time_text(moment: datetime) -> str:
    """A time as Kubernetes writes it, in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

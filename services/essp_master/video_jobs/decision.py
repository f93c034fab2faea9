"""What to do about one VideoJob, given its job. Pure.

    the VideoJob                its job                         step
    is being deleted            under way                       STOP
                                ended, and its trainers, too    RELEASE
    belongs to another's job    any                             REFUSE
    any                         none, or ended before           START, unless it says that it is paused: WAIT
    does not hold it            under way, and the same         HOLD
                                under way, and another          REFUSE
    has a new generation        under way                       CHANGE
    says paused                 not paused, or the reverse      PAUSE, RESUME
    was made by the master      under way, and another by now   FOLLOW
    was made by the master      removed                         FORGET
    holds it                    ended                           RELEASE
    anything else                                               SHOW

A job that has ended is started again when its VideoJob changes, and not otherwise: one that was stopped by a request,
or has failed, does not come back by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from essp_common.errors import ConfigError
from essp_common.field_paths import joined, parts_of
from essp_common.job.changes import changeable, leaves_of
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_master.video_jobs.resource import VideoJob

ENDED = ("Completed", "Failed", "Stopped")
"""The phases of a VideoJob whose job has ended."""


class Step(StrEnum):
    """The next thing to do."""

    START = "start"
    WAIT = "wait"
    HOLD = "hold"
    CHANGE = "change"
    FOLLOW = "follow"
    FORGET = "forget"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    RELEASE = "release"
    REFUSE = "refuse"
    SHOW = "show"


@dataclass(frozen=True, slots=True)
class Known:
    """What the master knows about the job of a VideoJob."""

    state: JobState | None = None
    """None: there is no such job."""
    same: bool = False
    """Whether it is what the VideoJob says."""
    trains: bool = False
    """Whether trainers of it are still there."""
    rival: str = ""
    """The VideoJob that the job belongs to, if that is another one."""


def decide(found: VideoJob, known: Known) -> Step:
    """Return the next step."""
    under_way = known.state is not None and not known.state.ended
    if found.metadata.deleted:
        if not found.held:
            return Step.SHOW
        if under_way:
            return Step.STOP
        return Step.SHOW if known.trains else Step.RELEASE
    if known.rival:
        return Step.REFUSE
    if not under_way:
        return _of_none_or_ended(found, known)
    if not found.held:
        return Step.HOLD if known.same or found.mirrored or found.began else Step.REFUSE
    if not found.accepted:
        return Step.CHANGE
    if found.mirrored and not known.same:
        return Step.FOLLOW
    if found.paused and known.state in (JobState.RUNNING, JobState.QUEUED):
        return Step.PAUSE
    if found.paused is False and known.state is JobState.PAUSED:
        return Step.RESUME
    return Step.SHOW


def _of_none_or_ended(found: VideoJob, known: Known) -> Step:
    if found.mirrored and known.state is None:
        return Step.FORGET
    over = known.state is not None or found.status.get("phase") in ENDED
    if found.accepted and over:
        return Step.RELEASE if found.held else Step.SHOW
    if found.mirrored and not found.began:
        return Step.SHOW  # its job ended before it could hold it
    return Step.WAIT if found.paused else Step.START


def differing(present: JobSpec, wanted: JobSpec) -> dict[str, Any]:
    """Dotted field -> value of all that has to change for a job to be as wanted. What is not stated stays as it is.

    Raises `ConfigError` for trainers and streams that the job has and would lose.
    """
    for group in ("trainers", "streams"):
        for name in getattr(present, group).keys() - getattr(wanted, group).keys():
            raise ConfigError(
                "the job has it, and a job can only get more of them; put it back",
                field=joined((group, name)),
                code="missing",
            )
    before = dict(leaves_of(present.model_dump(mode="json")))
    there = {group: getattr(present, group).keys() for group in ("trainers", "streams")}
    given = stated(wanted)
    return {
        field: value
        for names, value in leaves_of(wanted.model_dump(mode="json"))
        if before.get(names, ...) != value
        if (field := joined(names)) in given or (names[0] in there and names[1] not in there[names[0]])
    }


def stated(wanted: JobSpec) -> set[str]:
    """The dotted fields that were given for a job, in each trainer of a sweep."""
    return {joined(names) for names, _ in leaves_of(wanted.model_dump(mode="json", exclude_unset=True))}


def as_started(wanted: JobSpec, before: JobSpec) -> JobSpec:
    """A job that has ended and is started again, with what was changed while it ran as it was at its start: its output
    remembers that, and such changes follow later. If that is not a job, they differ in more, and the check of the
    wanted one says in what."""
    document, former = wanted.model_dump(mode="json"), before.model_dump(mode="json")
    for field in changeable(before):
        *path, last = parts_of(field)
        section, old = _section(document, path), _section(former, path)
        if section is not None and old is not None:
            section[last] = old[last]
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return wanted


def _section(document: Mapping[str, Any], path: list[str]) -> Any:
    found: Any = document
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found

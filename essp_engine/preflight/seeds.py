"""Builds the first work units of a job as a trial, so that a job with impossible clips is refused before it begins."""

from __future__ import annotations

from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_engine.preflight.resolve import ResolvedJob
from essp_engine.seeding.instructions import IssueUnits
from essp_engine.seeding.message_builder import MessageBuilder


def try_seeds(job: ResolvedJob) -> None:
    """Build the first work units of each kind of phase, as the master will. After the checks: the budget, which must be
    large enough, limits the size of a unit.

    Raises `ConfigError` if one cannot be built.
    """
    messages, unit_clips = MessageBuilder(job.spec, job.phases, 0, job.labels), job.budget.unit_clips
    seen: set[Purpose] = set()
    for number, (purpose, _) in enumerate(job.phases.order):
        if purpose in seen:
            continue
        seen.add(purpose)
        plan = job.phases.plan(number)
        for index in range(min(unit_clips, len(plan))):
            clip = plan.clip(index)
            try:
                messages.units(IssueUnits(number, ((clip,),), job.parts.consumers))
            except (ValueError, TypeError, OverflowError) as error:
                video = job.phases.view(number).rows.text("id", clip.video)
                raise ConfigError(
                    f"video {video!r}, planned at index {index}, cannot give a clip: {error}; build the catalog again",
                    field="data.catalog",
                    code="unreadable",
                ) from error

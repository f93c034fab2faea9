"""Input of the queue's decisions (`plan.py`): the available resources, and the jobs as contenders.

The available resources are the bytes in the setting, or the capacity of the frame cache, and the ranks that the master
divides. If the size of the cache has never been known, nothing new is admitted; if the cache stops answering, its last
known size counts.

A job counts with its whole budget, and one rank for each trainer that is not done, since it could not continue with
fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.quantities import counted, size
from essp_master.cache_watch import CacheWatch
from essp_master.config import MasterSettings, Team
from essp_master.job.job import Job
from essp_master.queue.plan import UNBOUNDED, Amount, Contender, Plan, Waiting, plan

_NOT_KNOWN = "the frame cache does not answer, so it is not known how much it may hold"


class Admission:
    """Decides which jobs run. Not thread-safe; `measure` may be called by any thread."""

    def __init__(self, settings: MasterSettings, cache_watch: CacheWatch) -> None:
        self._settings = settings
        self._cache_watch = cache_watch

    def measure(self) -> None:
        """Ask for the capacity of the cache, if it is unknown; blocks for the answer."""
        if self.capacity is None:
            self._cache_watch.ask()

    @property
    def capacity(self) -> Amount | None:
        """What running jobs may occupy together; None if it is not known yet."""
        budget: int | None = self._settings.queue_budget
        if budget is None:
            if (limit := self._cache_watch.limit_bytes) is None:
                return None
            budget = limit or UNBOUNDED
        return Amount(budget, self._settings.ranks or UNBOUNDED)

    def check(self, spec: JobSpec, team: str) -> None:
        """Raise `ConfigError` for a job that its team's quota would never allow to run."""
        quota = self._settings.teams.get(team, Team())
        if quota.budget is not None and spec.limits.budget > quota.budget:
            raise ConfigError(
                f"{size(spec.limits.budget)} are more than team {team} may take up "
                f"({size(quota.budget)}); lower it, or have the quota raised (ESSP_TEAMS)",
                field="limits.budget",
                code="range",
            )
        if quota.ranks is not None and self._settings.ranks and len(spec.trainers) > quota.ranks:
            raise ConfigError(
                f"{counted(len(spec.trainers), 'trainer')} need a rank each, and team {team} may have "
                f"{quota.ranks}; make several jobs of them, or have the quota raised (ESSP_TEAMS)",
                field="trainers",
                code="range",
            )

    def newcomer(self, spec: JobSpec, team: str, since: datetime) -> Contender:
        """Return the contender for a job that is being started."""
        need = self._need(spec, len(spec.trainers))
        return Contender(name=spec.name, team=team, priority=spec.priority, since=since, need=need, waiting=True)

    def plan(self, seen: Sequence[Contender]) -> Plan:
        """Decide about these jobs, which have not ended."""
        if (capacity := self.capacity) is not None:
            return plan(seen, capacity, self._settings.teams)
        waiting = sorted((job for job in seen if job.waiting), key=lambda job: job.rank)
        return Plan((), {}, tuple(Waiting(job.name, place, _NOT_KNOWN) for place, job in enumerate(waiting, 1)))

    def contender(self, job: Job) -> Contender:
        """Return the contender for a job of this master."""
        spec, running, waiting = job.spec, job.state is JobState.RUNNING, job.state is JobState.QUEUED
        need = self._need(spec, len(spec.trainers.keys() - job.ledger.finals))
        held = Amount()
        if job.finishes:
            held = Amount(job.ledger.credits.outstanding_bytes, need.ranks)
        elif not (running or waiting):
            held = Amount(job.ledger.credits.outstanding_bytes)
        return Contender(
            name=job.name,
            team=job.team,
            priority=job.priority or 0,
            since=job.life.created,
            need=need,
            running=running,
            waiting=waiting,
            held=held,
        )

    def _need(self, spec: JobSpec, trainers: int) -> Amount:
        return Amount(spec.limits.budget, trainers if self._settings.ranks else 0, 1)

"""Decides which jobs run, and in which order the others wait.

Pure, and a function of the present jobs alone, so a new master decides as the previous one would have.

    capacity   limit for the budgets and ranks of all running jobs together
    quota      the same for one team, and how many of its jobs may run at once
    share      of a team: of bytes or of ranks, whichever is larger, divided by the team's weight

The next job belongs to the team with the smallest share; among the team's jobs, it is the one with the highest
priority, and among these the one started first. No job overtakes one that lacks room, so a large one gets its turn. A
job that only its team's quota holds back blocks only its own team.

A job without room takes the room of others: in its own team, of jobs with a lower priority; in other teams, of the last
jobs, as long as their team's share stays no smaller than its own team's share becomes. So a preempted job never takes
the room back from the one that got it, and each round of preemptions ends.

A preempted job finishes its work in progress. Until then that work counts (`held`), and the job that gets the room
waits for it. A job that needs more than the capacity counts as the whole capacity: it runs alone.

Source: the share follows Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from essp_common.quantities import counted, size
from essp_master.config import Team

UNBOUNDED = 2**62
"""More than any job needs."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The resources that jobs occupy."""

    bytes: int = 0
    ranks: int = 0
    jobs: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.ranks + other.ranks, self.jobs + other.jobs)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.bytes - other.bytes, self.ranks - other.ranks, self.jobs - other.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job, as the queue sees it."""

    name: str
    team: str = ""
    priority: int = 0
    since: datetime
    """When it was started."""
    need: Amount
    """What it occupies while it runs."""
    running: bool = False
    waiting: bool = False
    """Whether it is in the queue. Neither running nor waiting: users have paused it."""
    held: Amount = Amount()
    """What it still occupies while it does not run."""

    @property
    def rank(self) -> tuple[int, datetime, str]:
        """Its order among the jobs of its team; the smallest comes first."""
        return -self.priority, self.since, self.name


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue."""

    job: str
    position: int
    """Counted from 1."""
    reason: str
    """Why it waits, for users: a sentence without a full stop."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions, and what users see about the remaining jobs."""

    start: tuple[str, ...]
    """Jobs that run from now on, in order."""
    preempt: Mapping[str, str]
    """Jobs that must wait again -> the job that gets their room."""
    waiting: tuple[Waiting, ...]
    """The queue, in order, after `start` and `preempt`."""


def plan(jobs: Sequence[Contender], capacity: Amount, teams: Mapping[str, Team]) -> Plan:
    """Decide. `capacity.jobs` is ignored. A team that is not in `teams` has no quota and the weight 1."""
    return _Planner(jobs, capacity, teams).plan()


@dataclass(frozen=True, slots=True)
class _Lack:
    """Why a job does not fit."""

    reason: str
    of_quota: bool


class _Planner:
    """One plan in the making."""

    def __init__(self, jobs: Sequence[Contender], capacity: Amount, teams: Mapping[str, Team]) -> None:
        self._capacity = capacity
        self._teams = teams
        known = [replace(job, need=self._clamped(job.need)) for job in jobs]
        self._team_of = {job.name: job.team for job in known}
        self._running = {job.name: job for job in known if job.running}
        """Jobs that run and keep running."""
        self._held = {job.name: job.held for job in known if not job.running}
        """What jobs that do not run, and will not start now, still occupy."""
        self._lasting = sum((job.held for job in known if not (job.running or job.waiting)), Amount())
        """The part of it that will not be released soon."""
        self._queues: dict[str, list[Contender]] = defaultdict(list)
        """By team, the last job first."""
        for job in sorted((job for job in known if job.waiting), key=lambda job: job.rank, reverse=True):
            self._queues[job.team].append(job)
        self._used = sum((job.need for job in self._running.values()), Amount())
        self._of_team: dict[str, Amount] = defaultdict(Amount)
        for job in self._running.values():
            self._of_team[job.team] += job.need
        self._counted = defaultdict(Amount, self._of_team)
        """The same, plus the jobs ahead in the queue: this determines the order of the queue."""
        self._stuck = ""
        """The first job that waits for room, which no other job overtakes."""
        self._last: dict[str, str] = {}
        """By team: the last job that must wait and has no room yet."""
        self._promised: set[str] = set()
        """Jobs that start as soon as the jobs that made room for them have finished their work in progress."""
        self._start: list[str] = []
        self._preempted: dict[str, str] = {}
        self._waiting: list[Waiting] = []

    def plan(self) -> Plan:
        while (job := self._next()) is not None:
            if reason := self._why_it_waits(job):
                self._waiting.append(Waiting(job.name, len(self._waiting) + 1, reason))
                if job.name not in self._promised:
                    self._last[job.team] = job.name
            else:
                self._start.append(job.name)
            self._counted[job.team] += job.need
        return Plan(tuple(self._start), self._preempted, tuple(self._waiting))

    def _next(self) -> Contender | None:
        """Take the next job out of its queue."""
        heads = [queue[-1] for queue in self._queues.values() if queue]
        if not heads:
            return None
        return self._queues[
            min(heads, key=lambda job: (self._share(job.team, self._counted[job.team]), *job.rank)).team
        ].pop()

    def _why_it_waits(self, job: Contender) -> str:
        """Make room for a job and account for it. Returns why it does not start yet, or "" if it starts."""
        if job.name in self._preempted:
            return f"it made room for {self._preempted[job.name]}, and continues when there is room again"
        if before := self._last.get(job.team, self._stuck):
            return f"{self._called(before, job)} comes first"
        victims, lack = self._room_for(job)
        if lack is not None:
            if not lack.of_quota:
                self._stuck = job.name
            return lack.reason
        for victim in victims:
            self._preempt(victim, job)
        self._take(job, 1)
        del self._held[job.name]
        awaited = sorted({self._called(name, job) for name, held in self._held.items() if held != Amount()})
        if self._fits(self._used + sum(self._held.values(), Amount())):
            return ""
        self._promised.add(job.name)
        return (
            f"it starts when {' and '.join(awaited)} {'has' if len(awaited) == 1 else 'have'} finished the current work"
        )

    def _called(self, name: str, job: Contender) -> str:
        """Return the name of a job for another job's reason; names of other teams' jobs stay private."""
        return name if self._team_of[name] == job.team else "a job of another team"

    def _room_for(self, job: Contender) -> tuple[Sequence[Contender], _Lack | None]:
        """Return the jobs that must make room for this one, or what it lacks even if others make room."""
        victims: list[Contender] = []
        while (lack := self._lack(job, victims)) is not None:
            victim = self._victim(job, victims, lack.of_quota)
            if victim is None:
                return [], self._lack(job, [])
            victims.append(victim)
        return victims, None

    def _lack(self, job: Contender, victims: Sequence[Contender]) -> _Lack | None:
        own = [victim.need for victim in victims if victim.team == job.team]
        used = self._of_team[job.team] - sum(own, Amount())
        if reason := _beyond_quota(job, used, self._teams.get(job.team, Team())):
            return _Lack(reason, of_quota=True)
        free = self._capacity - self._used - self._lasting + sum((victim.need for victim in victims), Amount())
        if job.need.bytes > free.bytes:
            has = f"{size(max(0, free.bytes))} of {size(self._capacity.bytes)} are free"
            return _Lack(f"its budget is {size(job.need.bytes)}, and {has}", of_quota=False)
        if job.need.ranks > free.ranks:
            has = f"{max(0, free.ranks)} of {self._capacity.ranks} are free"
            return _Lack(f"it needs {counted(job.need.ranks, 'rank')}, and {has}", of_quota=False)
        return None

    def _victim(self, job: Contender, victims: Sequence[Contender], of_quota: bool) -> Contender | None:
        """Return the next job that must make room: the last one of the team with the largest share that may lose it."""
        last: dict[str, Contender] = {}
        for other in self._running.values():
            if other not in victims and (other.team not in last or last[other.team].rank < other.rank):
                last[other.team] = other
        able = [other for other in last.values() if self._gives_way(other, job, victims, of_quota)]
        return max(
            able,
            key=lambda other: (other.team != job.team, self._share(other.team, self._of_team[other.team]), *other.rank),
            default=None,
        )

    def _gives_way(self, other: Contender, job: Contender, victims: Sequence[Contender], of_quota: bool) -> bool:
        if other.team == job.team:
            return other.priority < job.priority
        if of_quota:
            return False
        left = {team: self._of_team[team] for team in (job.team, other.team)}
        for victim in victims:
            if victim.team in left:
                left[victim.team] -= victim.need
        theirs = self._share(other.team, left[other.team] - other.need)
        # A preemption for bytes may leave a share of ranks unchanged; with equal shares, two teams could then take
        # turns forever.
        before, after = self._share(job.team, left[job.team]), self._share(job.team, left[job.team] + job.need)
        return before < theirs and after <= theirs

    def _preempt(self, victim: Contender, job: Contender) -> None:
        self._take(victim, -1)
        self._counted[victim.team] -= victim.need
        del self._running[victim.name]
        self._held[victim.name] = victim.need  # until its actual work in progress is known
        self._preempted[victim.name] = self._called(job.name, victim)
        queue = self._queues[victim.team]
        queue.append(victim)
        queue.sort(key=lambda job: job.rank, reverse=True)

    def _take(self, job: Contender, sign: int) -> None:
        change = job.need if sign > 0 else Amount() - job.need
        self._used += change
        self._of_team[job.team] += change

    def _fits(self, used: Amount) -> bool:
        return used.bytes <= self._capacity.bytes and used.ranks <= self._capacity.ranks

    def _share(self, team: str, amount: Amount) -> float:
        weight = self._teams.get(team, Team()).weight
        return max(amount.bytes / self._capacity.bytes, amount.ranks / self._capacity.ranks) / weight

    def _clamped(self, need: Amount) -> Amount:
        return Amount(min(need.bytes, self._capacity.bytes), min(need.ranks, self._capacity.ranks), need.jobs)


def _beyond_quota(job: Contender, used: Amount, team: Team) -> str:
    """Return what exceeds the team's quota; empty if nothing does."""
    if team.jobs is not None and used.jobs + job.need.jobs > team.jobs:
        return f"team {job.team} runs {counted(used.jobs, 'job')}, and may run {team.jobs}"
    if team.budget is not None and used.bytes + job.need.bytes > team.budget:
        left = f"{size(max(0, team.budget - used.bytes))} of the {size(team.budget)} of team {job.team} are free"
        return f"its budget is {size(job.need.bytes)}, and {left}"
    if team.ranks is not None and used.ranks + job.need.ranks > team.ranks:
        left = f"{max(0, team.ranks - used.ranks)} of the {team.ranks} of team {job.team} are free"
        return f"it needs {counted(job.need.ranks, 'rank')}, and {left}"
    return ""

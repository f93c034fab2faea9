"""Who calls the API, and which jobs belong to them.

A token may belong to a team. Its bearer sees and changes only that team's jobs. Other teams' jobs are invisible: no
list contains them, and a request for one is answered as if it did not exist (404), so that names reveal nothing. The
only trace is that a start under a taken name is refused. A token with the scope `admin` sees and changes everything. As
long as no token has a team, and where the API is open, all callers see all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from essp_common.errors import Conflict, NotFound
from essp_common.runtime import ids
from essp_common.runtime.api_token import Right
from essp_common.validation import suggested
from essp_master.api.aside import Aside
from essp_master.service import Master


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    name: str
    """For logs: the name of the token."""
    identity: str
    """Unique to each caller."""
    scopes: frozenset[Right]
    team: str
    all_teams: bool
    """Whether the caller has access to the jobs of every team."""

    @property
    def is_admin(self) -> bool:
        """Whether the caller may do everything."""
        return Right.ADMIN in self.scopes

    def may(self, right: Right) -> bool:
        """Whether the caller has this scope, or `admin`."""
        return self.is_admin or right in self.scopes

    def owns(self, team: str) -> bool:
        """Whether the caller has access to this team's jobs."""
        return self.all_teams or team == self.team


def caller_of(request: Request) -> Caller:
    """Return the sender of this request, as determined by `guard.py`."""
    caller: Caller = request.state.caller
    return caller


class OwnJobs:
    """Limits callers to their own jobs."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._aside = Aside()

    async def __call__(self, request: Request) -> None:
        """Raise `NotFound` if the path names a job that is unknown or not the caller's. Used with `Depends` by all
        routes about jobs. It runs in its own threads, like the routes themselves, because it may wait for the master.
        """
        name, caller = request.path_params.get("name"), caller_of(request)
        if name is not None and not caller.all_teams:
            await self._aside.run(self.require, caller, name)

    def require(self, caller: Caller, name: str) -> None:
        """Raise `NotFound` for a job that is not the caller's."""
        team = self._master.team_of(name)
        if team is None or not caller.owns(team):
            raise NotFound(f"there is no job {name!r}; {suggested(name, sorted(self.names(caller)))}")

    def team_for(self, caller: Caller, name: str) -> str:
        """Return the team that owns a job which a caller starts under this name: the caller's team, or, if an admin
        restarts another team's job, that team. Raises `Conflict` if the name belongs to another team's job."""
        team = self._master.team_of(name)
        if team is None:
            return caller.team
        if not caller.owns(team):
            raise Conflict(f"name: {name} is taken; choose another name")
        return team if caller.is_admin else caller.team

    def names(self, caller: Caller) -> set[str]:
        """Return the names of the jobs that a caller can see."""
        return {job.name for job in self._master.jobs() if caller.owns(job.team)}

    def sees_pool(self, caller: Caller, pool: str) -> bool:
        """Whether a caller may see the state of a pool. Pools of trainers belong to the owner of their job."""
        if caller.all_teams or not ids.is_training(pool):
            return True
        team = self._master.team_of(pool.split(".")[1])
        return team is not None and caller.owns(team)

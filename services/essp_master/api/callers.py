"""Who calls the API, and which jobs are theirs.

A token may belong to a team. Its bearer sees and changes the jobs of that team alone; those of others are not there for
him: they are in no list, and asking for one is answered as if it did not exist (404), so that names tell nothing. Only
that a name is taken shows, when one starts a job under it. A token with the scope `admin` sees and changes all.

As long as no token has a team, and where the API is open, everybody sees everything.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from essp_common.errors import Conflict, NotFound
from essp_common.runtime import ids
from essp_common.validation import suggested
from essp_master.api.aside import Aside
from essp_master.config import Right
from essp_master.service import Master


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sends a request."""

    name: str
    """For logs: that of the token."""
    identity: str
    """Two callers never have the same."""
    scopes: frozenset[Right]
    team: str
    all_teams: bool
    """The jobs of every team are open to it."""

    @property
    def is_admin(self) -> bool:
        """Everything is open to it."""
        return Right.ADMIN in self.scopes

    def may(self, right: Right) -> bool:
        """Whether it has this scope, or all."""
        return self.is_admin or right in self.scopes

    def owns(self, team: str) -> bool:
        """Whether the jobs of this team are open to it."""
        return self.all_teams or team == self.team


def caller_of(request: Request) -> Caller:
    """Who sends this request; `guard.py` has found it out."""
    caller: Caller = request.state.caller
    return caller


class OwnJobs:
    """Keeps callers to the jobs that are theirs."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._aside = Aside()

    async def __call__(self, request: Request) -> None:
        """Raises `NotFound` for a path about a job that is not the caller's, as for one that there is not. For
        `Depends`, of all routes about jobs. In threads of its own, as what is asked for is."""
        name, caller = request.path_params.get("name"), caller_of(request)
        if name is not None and not caller.all_teams:
            await self._aside.run(self.require, caller, name)

    def require(self, caller: Caller, name: str) -> None:
        """Raises `NotFound` for a job that is not the caller's."""
        team = self._master.team_of(name)
        if team is None or not caller.owns(team):
            raise NotFound(f"there is no job {name!r}; {suggested(name, sorted(self.names(caller)))}")

    def team_for(self, caller: Caller, name: str) -> str:
        """Whose job it is that a caller starts under this name: the caller's, or, where an admin starts another team's
        job again, still that team's. Raises `Conflict` for the name of another team's job."""
        team = self._master.team_of(name)
        if team is None:
            return caller.team
        if not caller.owns(team):
            raise Conflict(f"name: {name} is taken; choose another name")
        return team if caller.is_admin else caller.team

    def names(self, caller: Caller) -> set[str]:
        """The jobs that are there for a caller."""
        return {job.name for job in self._master.jobs() if caller.owns(job.team)}

    def sees_pool(self, caller: Caller, pool: str) -> bool:
        """Whether a caller may know what is said of a pool: those of trainings are their jobs'."""
        if caller.all_teams or not ids.is_training(pool):
            return True
        team = self._master.team_of(pool.split(".")[1])
        return team is not None and caller.owns(team)

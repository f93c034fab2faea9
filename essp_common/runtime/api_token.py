"""A token for the master's API, as the master's settings list it: `essp token` makes it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Right(StrEnum):
    """A token's scope; `services/essp_master/api/guard.py` lists which request needs which."""

    METRICS = "metrics"
    READ = "read"
    OPERATE = "operate"
    REGISTER = "register"
    ADMIN = "admin"


class ApiToken(BaseModel):
    """A credential for the API. `essp token NAME` generates one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str = Field(min_length=1, max_length=64)
    """Appears in the log of registrations."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the token: the master need not know the token itself."""
    scopes: frozenset[Right] = Field(min_length=1)
    team: str = Field("", max_length=64)
    """The team whose jobs its bearer starts, sees and changes (`ESSP_TEAMS`); empty for jobs without a team."""

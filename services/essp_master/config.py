"""Settings of the master: those of every service (`essp_common.runtime.config`), its API, its pools, its timeouts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, SecretStr

from essp_common.errors import ConfigError
from essp_common.runtime.config import Settings
from essp_common.runtime.login import secret_in

Bytes = Annotated[ByteSize, Field(ge=1, le=2**50)]


class Right(StrEnum):
    """The scope of a token; `services/essp_master/api/guard.py` lists what needs which."""

    METRICS = "metrics"
    READ = "read"
    OPERATE = "operate"
    REGISTER = "register"
    ADMIN = "admin"


class ApiToken(BaseModel):
    """Who may call the API. `essp token NAME` makes one."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str = Field(min_length=1, max_length=64)
    """Appears in the log of registrations."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the token: the master need not know the token itself."""
    scopes: frozenset[Right] = Field(min_length=1)
    team: str = Field("", max_length=64)
    """Whose jobs its bearer starts, sees and changes (`ESSP_TEAMS`); empty: those of no team."""


class Team(BaseModel):
    """What the jobs of one team may take up together while they run, and its part of what all share."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    budget: Bytes | None = None
    """Most bytes that their budgets (`limits.budget`) come to; None: no limit of its own."""
    ranks: int | None = Field(None, ge=1)
    """Most ranks, one for each trainer; None: no limit of its own."""
    jobs: int | None = Field(None, ge=1)
    """Most jobs at a time; None: no limit."""
    weight: float = Field(1.0, gt=0, le=1000)
    """A team with twice the weight gets twice the share where teams compete."""
    outputs: tuple[str, ...] = ()
    """Folders below which its jobs write: `["s3://runs/vision"]`. Empty: wherever the stores allow."""


class MasterSettings(Settings):
    """Settings of one master; what to do is in the jobs."""

    api_token: SecretStr = SecretStr("")
    """Callers of the API have to send a token (`Authorization: Bearer ...`). This one may do everything."""
    api_token_file: str = ""
    """File that holds this token, in place of `api_token`: who sees the environment of the process does not see it. It
    is read when the master starts."""
    api_tokens: tuple[ApiToken, ...] = ()
    """Further tokens, each with a name and scopes: a JSON list of `{"name": .., "sha256": .., "scopes": ["read"]}`."""
    api_open: bool = False
    """Serve the API without a token: for a trusted network only."""
    api_hosts: tuple[str, ...] = ()
    """Names under which callers reach the API, besides localhost and its address: `["essp.example.org"]`, or
    `["*.example.org"]`. Requests for another name are refused: a web page could have had it point here."""
    api_body_bytes: int = Field(2**20, ge=1024, le=2**30)
    """Largest request body; a job is some kilobytes."""
    api_requests_per_s: float = Field(100.0, ge=0)
    """Requests a second that one caller (a token, or an address where none is sent) may make, with bursts of two
    seconds' worth; further ones get 429 with `Retry-After`. 0: no limit."""
    api_connections: int = Field(512, ge=8, le=65_536)
    """Connections to the API at once. Where there are more, the one that has been idle longest is closed. Three
    quarters of them may have a request under way, further requests get 503; the rest is for probes. A third of these
    may be event streams, half of those of one caller; of the others a quarter is kept for requests that do something,
    such as to stop a job. Each takes a file descriptor (`ulimit -n`)."""
    api_patience_s: float = Field(20.0, gt=0, le=3600)
    """Seconds a caller may take to send a request, and to take a part of the answer; then it is cut off."""
    state: str = ""
    """Folder in one of the stores for what is registered, and for bounds that people gave to pools. Empty: nothing can
    be registered, and such bounds last until the master ends."""
    images: tuple[str, ...] = ()
    """Prefixes of the images that may be registered. Empty: none."""
    pools: Literal["none", "processes", "kubernetes"] = "none"
    """Who starts and stops workers: `none` (not the master; it only recommends sizes), `processes` (the master, as its
    child processes on one machine), `kubernetes` (the master, in its namespace)."""
    pool_sizes: Mapping[str, int] = Field(default_factory=lambda: {"decoder": 1, "extractor": 1, "aggregator": 1})
    """`processes`: workers of each pool to begin with, a JSON object; pools are `decoder`, `extractor` (all features),
    `extractor.flow`, `extractor.flow+hof`, `aggregator`, `predictor`."""
    ranks: int = Field(0, ge=0)
    """Ranks (GPUs, or processes where there are none) that the master divides among the trainers of its jobs, again
    after each epoch. 0: the master starts no trainers."""
    queue_budget: Bytes | None = None
    """Bytes that the budgets of running jobs may come to together; further jobs wait in a queue. Default: what the
    frame cache may hold."""
    teams: Mapping[str, Team] = Field(default_factory=dict)
    """Quotas and weights of teams, a JSON object: `{"vision": {"budget": "8GiB", "ranks": 4, "jobs": 3, "weight": 2}}`,
    and the folders of their `outputs`. A token says whose jobs its bearer starts (`essp token --team`)."""
    namespace: str = ""
    """`kubernetes`: the namespace (default: that of the master's own pod)."""
    release: str = ""
    """`kubernetes`: the Helm release whose pools these are (default: all of the namespace)."""
    templates: str = "/etc/essp/templates"
    """`kubernetes`: folder with the chart's templates for what is registered."""
    owner: str = ""
    """`kubernetes`: the ConfigMap that owns what the master makes, which therefore goes with it (default: it stays)."""
    lease: str = ""
    """Name of the Kubernetes Lease by which several masters choose a leader. Empty: this is the only master."""
    url: str = ""
    """Where others reach this master's API; standbys pass requests on to it (default: http://host name:port)."""
    tensorboard: str = ""
    """Folder in which each training gets event files for TensorBoard, below the name of its job (needs the extra
    `tracking`). Empty: none."""
    mlflow: str = ""
    """URI of an MLflow server on which each training gets a run, in an experiment named after its job (needs the extra
    `tracking`). Empty: none."""
    stall_s: float = Field(60.0, gt=0, le=3600)
    """If workers report nothing for a job for so long, its outstanding clips are issued again. Each time in a row the
    wait doubles, up to an hour, which is the most it can be."""
    ready_s: float = Field(600.0, ge=0)
    """How long the seeds of a job wait, from when it runs, until each pool that its clips flow through has a worker:
    decoders, extractors, and its trainers or a predictor. Then they go out all the same. 0: they do not wait."""
    loop_patience_s: float = Field(60.0, ge=5)
    """A loop of the user's own that takes part in a job, and gives no sign of life for so long, counts as gone. The job
    goes on without it; when it comes again, it goes on where its state says."""
    takeover_s: float = Field(600.0, ge=0)
    """How long a new master waits for a server that it needs to take a job over. Then it fails the job, which can be
    started again and resumes, and goes on with the others."""
    history_s: float = Field(1.0, ge=0)
    """Shortest time between two writes of a job's history. What a master has not written when it dies, its successor
    accounts for again."""
    poll_records: int = Field(2000, ge=1)
    """Messages of `essp.progress` accounted for at once."""

    def tokens(self) -> tuple[ApiToken, ...]:
        """All tokens that the API accepts. Raises `ConfigError` for a file that has none."""
        secret = self.api_token.get_secret_value()
        if self.api_token_file:
            if secret:
                raise ConfigError(
                    "ESSP_API_TOKEN and ESSP_API_TOKEN_FILE exclude each other; set one of them", code="conflict"
                )
            secret = secret_in(self.api_token_file, "ESSP_API_TOKEN_FILE")
        if not secret:
            return self.api_tokens
        digest = hashlib.sha256(secret.encode()).hexdigest()
        return (ApiToken(name="ESSP_API_TOKEN", sha256=digest, scopes=frozenset({Right.ADMIN})), *self.api_tokens)

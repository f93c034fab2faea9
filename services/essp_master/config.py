"""Settings of the master: the common ones (`essp_common.runtime.config`), its API, its pools, its timeouts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ByteSize, ConfigDict, Field, SecretStr

from essp_common.errors import ConfigError
from essp_common.objects.uris import place_of
from essp_common.runtime.api_token import ApiToken, Right
from essp_common.runtime.config import Settings
from essp_common.runtime.hosts import plain
from essp_common.runtime.login import secret_in

Bytes = Annotated[ByteSize, Field(ge=1, le=2**50)]


def _checked_hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in filter(None, names):
        if not plain(name) or "*" in name.removeprefix("*."):
            raise ValueError(f"{name} is not the name of a host; write it as in essp.example.org or *.example.org")
    return names


def _checked_folder(uri: str) -> str:
    try:
        return str(place_of(uri))
    except ConfigError as error:
        raise ValueError(str(error)) from error


class Team(BaseModel):
    """Limits for the running jobs of one team together, and the team's share of common resources."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    budget: Bytes | None = None
    """Most bytes for the sum of their budgets (`limits.budget`); None: no team limit."""
    ranks: int | None = Field(None, ge=1)
    """Most ranks, one for each trainer; None: no team limit."""
    jobs: int | None = Field(None, ge=1)
    """Most jobs at a time; None: no limit."""
    weight: float = Field(1.0, gt=0, le=1000)
    """A team with twice the weight gets twice the share where teams compete."""
    outputs: tuple[Annotated[str, AfterValidator(_checked_folder)], ...] = ()
    """Folders below which its jobs write: `["s3://runs/vision"]`. Empty: any folder that the stores allow."""


class MasterSettings(Settings):
    """Settings of one master; jobs say what to do."""

    api_token: SecretStr = SecretStr("")
    """Callers of the API must send a token (`Authorization: Bearer ...`). This one may do everything."""
    api_token_file: str = ""
    """File that holds this token, instead of `api_token`: it stays invisible to those who can see the environment of
    the process. Another token in it counts within seconds, without a restart."""
    api_tokens: tuple[ApiToken, ...] = ()
    """Further tokens, each with a name and scopes: a JSON list of `{"name": .., "sha256": .., "scopes": ["read"]}`."""
    api_open: bool = False
    """Serve the API without a token: for a trusted network only."""
    trial_servers: bool = False
    """The servers are those that the chart brings for trying (`servers.bundled`): the master says so in a condition."""
    api_hosts: Annotated[tuple[str, ...], AfterValidator(_checked_hosts)] = ()
    """Names under which callers reach the API, in addition to localhost and its address: `["essp.example.org"]`, or
    `["*.example.org"]`. Requests under another name are refused, since a web page could have made that name point here.
    """
    api_body_bytes: int = Field(2**20, ge=1024, le=2**30)
    """Largest request body; a job is some kilobytes."""
    api_requests_per_s: float = Field(100.0, ge=0)
    """Requests per second that one caller (a token, or an address if none is sent) may make, with bursts of two
    seconds' worth; further requests get 429 with `Retry-After`. 0: no limit."""
    api_connections: int = Field(512, ge=8, le=65_536)
    """Connections to the API at once. If there are more, the one that has been idle longest is closed. Three quarters
    of them may have a request under way, and further requests get 503; the rest is for probes. A third of the requests
    may be event streams, and one caller gets at most half of them. A quarter of the others is reserved for requests
    that act, such as stopping a job. Each connection takes a file descriptor (`ulimit -n`)."""
    api_patience_s: float = Field(20.0, gt=0, le=3600)
    """Seconds that a caller may take to send a request or to read a part of the answer; then it is cut off."""
    state: str = ""
    """Folder in one of the stores for registrations, for pool bounds that users have set, and for what was done to
    pools. Empty: nothing can be registered, and the others are lost when the master ends."""
    images: tuple[str, ...] = ()
    """Allowed prefixes of images in registrations. Empty: no image may be registered."""
    pools: Literal["none", "processes", "kubernetes"] = "none"
    """Who starts and stops workers: `none` (not the master; it only recommends sizes), `processes` (the master, as its
    child processes on one machine), `kubernetes` (the master, in its namespace)."""
    pool_sizes: Mapping[str, int] = Field(default_factory=lambda: {"decoder": 1, "extractor": 1, "aggregator": 1})
    """`processes`: initial workers of each pool, a JSON object; pools are `decoder`, `extractor` (all features),
    `extractor.flow`, `extractor.flow+hof`, `aggregator`, `predictor`."""
    ranks: int = Field(0, ge=0)
    """Ranks (GPUs, or processes without GPUs) that the master divides among the trainers of its jobs, again after each
    epoch. 0: the master starts no trainers."""
    queue_budget: Bytes | None = None
    """Most bytes for the sum of the budgets of running jobs; further jobs wait in a queue. Default: the capacity of the
    frame cache."""
    teams: Mapping[str, Team] = Field(default_factory=dict)
    """Quotas and weights of teams, a JSON object: `{"vision": {"budget": "8GiB", "ranks": 4, "jobs": 3, "weight": 2}}`,
    and the folders of their `outputs`. A token names the team whose jobs its bearer starts (`essp token --team`)."""
    namespace: str = ""
    """`kubernetes`: the namespace (default: the namespace of the master's own pod)."""
    release: str = ""
    """`kubernetes`: the Helm release that the pools belong to (default: all pools in the namespace)."""
    templates: str = "/etc/essp/templates"
    """`kubernetes`: folder with the chart's templates for registered extractors and trainers."""
    owner: str = ""
    """`kubernetes`: the ConfigMap that owns the objects that the master creates; deleting it deletes them (default:
    they stay)."""
    video_jobs: Literal["off", "own", "all"] = "off"
    """`own`: each VideoJob of the namespace (a custom resource of Kubernetes) is a job of this master. `all`: jobs that
    are started by the REST API become VideoJobs, too. Needs the definition in `charts/essp/crds`."""
    video_jobs_team: str = ""
    """The team that the jobs of VideoJobs belong to, with its quota (default: no team)."""
    video_jobs_release_s: float = Field(120.0, ge=0)
    """How long a VideoJob that is deleted stays, at most, until its job has stopped and its trainers have left."""
    lease: str = ""
    """Name of the Kubernetes Lease with which several masters elect a leader. Empty: this is the only master."""
    url: str = ""
    """URL at which others reach this master's API; standbys forward requests to it (default: http://host name:port)."""
    tensorboard: str = ""
    """Folder in which each training gets event files for TensorBoard, below the name of its job (needs the extra
    `tracking`). Empty: no event files."""
    mlflow: str = ""
    """URI of an MLflow server on which each training gets a run, in an experiment named after its job (needs the extra
    `tracking`). Empty: no runs."""
    wandb: str = ""
    """Project on Weights & Biases in which each training gets a run, as in `videos` or `team/videos` (needs the extra
    `tracking`). Empty: no runs."""
    stall_s: float = Field(60.0, gt=0, le=3600)
    """If workers report nothing for a job for this long, its outstanding clips are issued again. The wait doubles each
    time in a row, up to an hour, which is also the largest value."""
    ready_s: float = Field(600.0, ge=0)
    """How long a job's seeds wait, after it starts running, until each pool that its clips flow through has a worker:
    decoders, extractors, and its trainers or a predictor. Then they are issued in any case. 0: they do not wait."""
    loop_patience_s: float = Field(60.0, ge=5)
    """If a user's own loop that takes part in a job gives no sign of life for this long, it counts as gone. The job
    continues without it. A loop that comes back continues at the position in its state."""
    takeover_s: float = Field(600.0, ge=0)
    """How long a new master waits for a server that it needs in order to take over a job. Then it fails the job, which
    can be started again and resumes, and continues with the others."""
    history_s: float = Field(1.0, ge=0)
    """Shortest time between two writes of a job's history. If a master dies, its successor accounts again for what it
    had not written yet."""
    poll_records: int = Field(2000, ge=1)
    """Messages from `essp.progress` accounted for in one batch."""

    def tokens(self) -> tuple[ApiToken, ...]:
        """Return all tokens that the API accepts. Raises `ConfigError` if the token file contains none."""
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

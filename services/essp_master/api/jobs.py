"""Jobs: start, list, show, change, pause, resume and stop."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, Field

from essp_common.artifacts.removal import Removal
from essp_common.field_paths import joined
from essp_common.job.changes import leaves_of, parse_changes
from essp_common.job.spec import JobKind, JobSpec, parse_spec
from essp_common.job.status import JobState, JobStatus, JobSummary, StreamPreview, TrainerCurve
from essp_common.job.timeline import JobTimeline
from essp_engine.preflight.output import Asked
from essp_master.api.aside import Aside
from essp_master.api.callers import OwnJobs, caller_of
from essp_master.api.idempotency import Answers, fingerprint
from essp_master.api.pages import PAGE_SIZE, PAGE_SIZE_MOST, page
from essp_master.api.problems import answers_of
from essp_master.service import Master
from essp_master.video_jobs.claims import Claims

IdempotencyKey = Annotated[
    str | None,
    Header(max_length=200, description="Sent again with the same key within a day: the first answer again."),
]
Fresh = Annotated[
    bool,
    Query(
        description="Start over: remove what a job has left in the output. Only what ESSP wrote goes; 422 for a folder "
        "that holds something and is not the output of a job, 409 for the output of another job."
    ),
]
Replaces = Annotated[
    str, Query(max_length=100, description="The name of another job, whose output may be removed (`fresh`).")
]
_MOST_KEPT_NAMED = 100
_SPEC = {"schema": {"$ref": "#/components/schemas/JobSpec"}}
_BODY = {"requestBody": {"required": True, "content": {"application/json": _SPEC, "application/yaml": _SPEC}}}


class Removed(BaseModel):
    """What a start with `fresh` removes."""

    job: str
    """The job whose output is removed: this job, or another one."""
    objects: int
    bytes: int
    kept: list[str]
    """The first hundred objects in the output that ESSP did not write; they stay."""


class JobCheck(BaseModel):
    """The result of a successful check of a job."""

    name: str
    clips: int
    """In all phases together."""
    trainers: list[str]
    warnings: list[str]
    """Problems that do not prevent the job from running."""
    removes: Removed | None = None
    """Null if nothing is removed."""


class JobRemoved(BaseModel):
    """What the removal of a job removes, or has removed."""

    job: str
    output: str
    """Empty if it is not known, because this release cannot read the job's specification; what is there stays."""
    objects: int
    bytes: int
    kept: list[str]
    """The first hundred objects in the output that ESSP did not write; they stay."""
    removed: bool
    """False: `dry_run`, nothing was removed."""


class JobSettings(BaseModel):
    """The settings of a job."""

    spec: dict[str, Any]
    """All of its settings, as a job file has them."""
    chosen: list[str]
    """The dotted fields whose values are not the defaults."""

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """The settings of this specification."""
        leaves = leaves_of(spec.model_dump(mode="json", exclude_defaults=True))
        return cls(spec=spec.model_dump(mode="json"), chosen=[joined(names) for names, _ in leaves])


class JobPriority(BaseModel):
    """The priority of a job among its team's jobs."""

    priority: int = Field(ge=-1000, le=1000)
    """Jobs with a higher priority go first; the default is 0."""


class JobPage(BaseModel):
    """One page of the list of jobs, newest first."""

    jobs: list[JobSummary]
    next_page_token: str | None
    """The `page_token` of the next page; null on the last page."""


_CHANGE = {"trainers": {"rgb": {"optimizer": {"lr": 0.001}}}}
_CHANGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"type": "object", "additionalProperties": True}, "example": _CHANGE}
            for kind in ("application/json", "application/merge-patch+json")
        },
    }
}


def router(master: Master, claims: Claims) -> APIRouter:
    """Return the routes for jobs. `claims`: what VideoJobs say about them."""
    own, aside, commands = OwnJobs(master), Aside(), Aside()
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(own)])
    _add_start(routes, master, claims, own, aside)
    _add_validate(routes, master, claims, own, aside)
    _add_change(routes, master, claims, aside)

    @routes.get("", operation_id="list_jobs", responses=answers_of(401, 403, 422, 503))
    def list_jobs(
        request: Request,
        state: Annotated[list[JobState] | None, Query(description="Only jobs in one of these states.")] = None,
        kind: Annotated[JobKind | None, Query(description="Only jobs of this kind.")] = None,
        page_size: Annotated[int, Query(ge=1, le=PAGE_SIZE_MOST)] = PAGE_SIZE,
        page_token: Annotated[str, Query(max_length=500, description="From the answer before.")] = "",
    ) -> JobPage:
        """The jobs that the token gives access to: its team's, or all. Newest first."""
        known = [job for job in master.jobs() if caller_of(request).owns(job.team)]
        wanted = [job for job in known if (not state or job.state in state) and kind in (None, job.kind)]
        jobs, token = page(wanted, lambda job: (job.created.isoformat(), job.name), page_size, page_token)
        return JobPage(jobs=jobs, next_page_token=token)

    @routes.get("/{name}", operation_id="get_job", responses=answers_of(401, 403, 404, 503))
    def get_job(name: str) -> JobStatus:
        """The full status of a job."""
        return master.status(name)

    _add_course(routes, master)

    @routes.get(
        "/{name}/streams/{stream}/preview", operation_id="preview_stream", responses=answers_of(401, 403, 404, 503)
    )
    def preview_stream(name: str, stream: str) -> StreamPreview:
        """Pictures of a clip that waits for the consumers of a stream, as they receive it. Nothing is acked, and
        nothing waits for it. 404 also if nothing is in the cache now; `detail` says why."""
        return master.preview(name, stream)

    @routes.put(
        "/{name}/priority", operation_id="prioritise_job", responses=answers_of(401, 403, 404, 409, 413, 415, 422, 503)
    )
    def prioritise_job(name: str, wanted: JobPriority) -> JobStatus:
        """Give a job another priority in the queue, also while it runs. It may have to make room for other jobs, or
        they for it."""
        claims.check_change(name, ["priority"])
        return master.prioritise(name, wanted.priority)

    _add_remove(routes, master, claims, commands)
    for action in ("pause", "resume", "stop"):
        routes.post(
            f"/{{name}}:{action}",
            operation_id=f"{action}_job",
            summary=action.title(),
            responses=answers_of(401, 403, 404, 409, 415, 503),
        )(commands.route(_action(master, claims, action)))
    return routes


def _add_start(routes: APIRouter, master: Master, claims: Claims, own: OwnJobs, aside: Aside) -> None:
    answers: Answers[JobStatus] = Answers(JobStatus)

    @routes.post(
        "",
        status_code=202,
        operation_id="start_job",
        responses=answers_of(401, 403, 409, 413, 415, 422, 503),
        openapi_extra=_BODY,
    )
    async def start_job(
        request: Request,
        response: Response,
        fresh: Fresh = False,
        replaces: Replaces = "",
        idempotency_key: IdempotencyKey = None,
    ) -> JobStatus:
        """Start a job for the token's team. A job that has ended resumes from its checkpoints. The job waits in the
        queue while there is no room for it."""
        body = await request.body()

        def start() -> JobStatus:
            spec = parse_spec(body.decode("utf-8", "replace"))
            claims.check_start(spec)
            return master.start(spec, fresh, asked=_asked(own, request, spec, replaces))

        asked = fingerprint(body, str(fresh), replaces)
        status = await aside.run(answers.once, _of_caller(request, idempotency_key), asked, start)
        response.headers["Location"] = f"/v1/jobs/{status.name}"
        return status


def _add_validate(routes: APIRouter, master: Master, claims: Claims, own: OwnJobs, aside: Aside) -> None:
    @routes.post(
        ":validate",
        operation_id="validate_job",
        responses=answers_of(401, 403, 409, 413, 415, 422, 503),
        openapi_extra=_BODY,
    )
    async def validate_job(
        request: Request,
        fresh: Fresh = False,
        replaces: Replaces = "",
    ) -> JobCheck:
        """Check a job exactly as its start would, without starting or removing anything. `removes` says what a start
        with `fresh` would remove."""
        body = await request.body()

        def check() -> JobCheck:
            spec = parse_spec(body.decode("utf-8", "replace"))
            claims.check_start(spec)
            found = master.validate(spec, fresh, _asked(own, request, spec, replaces))
            clips = sum(plan.clips for plan in found.phases.plans)
            trainers = list(found.spec.trainers)
            warnings, removes = list(found.warnings), _removed(found.removes)
            return JobCheck(name=found.spec.name, clips=clips, trainers=trainers, warnings=warnings, removes=removes)

        return await aside.run(check)


def _add_course(routes: APIRouter, master: Master) -> None:
    kept = Aside()  # what is kept of past jobs is in their outputs

    @routes.get("/{name}/curves", operation_id="job_curves", responses=answers_of(401, 403, 404, 422, 503))
    @kept.route
    def job_curves(name: str) -> list[TrainerCurve]:
        """The curve of each training within its epochs, for plotting."""
        return master.curves(name)

    @routes.get("/{name}/timeline", operation_id="job_timeline", responses=answers_of(401, 403, 404, 422, 503))
    @kept.route
    def job_timeline(name: str) -> JobTimeline:
        """The course of a job over its time, over all of its runs: rates, waiting, learning rates, and what its workers
        used. At most 480 moments."""
        return master.timeline(name)

    @routes.get("/{name}/settings", operation_id="job_settings", responses=answers_of(401, 403, 404, 422, 503))
    @kept.route
    def job_settings(name: str) -> JobSettings:
        """The settings with which a job runs. What was changed since is in `changes` of its status."""
        return JobSettings.of(master.spec(name))


def _add_change(routes: APIRouter, master: Master, claims: Claims, aside: Aside) -> None:
    answers: Answers[JobStatus] = Answers(JobStatus)

    @routes.patch(
        "/{name}",
        operation_id="change_job",
        responses=answers_of(401, 403, 404, 409, 413, 415, 422, 503),
        openapi_extra=_CHANGE_BODY,
    )
    async def change_job(name: str, request: Request, idempotency_key: IdempotencyKey = None) -> JobStatus:
        """Change a job while it is under way. The body is the changed part of the job file (a JSON merge patch). You
        can change `lr`, `schedule`, `unit`, `warmup`, `steps` and `gamma` of `trainers.NAME.optimizer`;
        `aggregation.strategies`; `epochs`, to a larger number; and you can add trainers with their streams. Trainers
        use a new rate from their next update; `changes` in the status says where that was. For more epochs or trainers,
        they save and continue; until then, `reason` in the status says so. Values that are already set are not a
        change."""
        body = await request.body()

        def change() -> JobStatus:
            fields = parse_changes(body.decode("utf-8", "replace"))
            claims.check_change(name, fields)
            return master.change(name, fields)

        key = _of_caller(request, idempotency_key)
        return await aside.run(answers.once, key, fingerprint(body, name), change)


def _add_remove(routes: APIRouter, master: Master, claims: Claims, aside: Aside) -> None:
    @routes.delete("/{name}", operation_id="remove_job", responses=answers_of(401, 403, 404, 409, 415, 422, 503))
    async def remove_job(
        name: str,
        request: Request,
        dry_run: Annotated[bool, Query(description="Only say what would be removed.")] = False,
    ) -> JobRemoved:
        """Remove a job that has ended: what it has left in its output, and its place in the list. Files that ESSP did
        not write stay. 409 while the job runs or its trainers save, and if another job that the master knows takes
        weights, a model, videos or records from its output."""
        caller = caller_of(request)
        if not dry_run:
            claims.check_remove(name)
        found = await aside.run(master.remove, name, dry_run, Asked(caller.team, caller.all_teams))
        return JobRemoved(
            job=found.job,
            output=found.output,
            objects=found.objects,
            bytes=found.bytes,
            kept=list(found.kept[:_MOST_KEPT_NAMED]),
            removed=not dry_run,
        )


def _asked(own: OwnJobs, request: Request, spec: JobSpec, replaces: str) -> Asked:
    caller = caller_of(request)
    return Asked(own.team_for(caller, spec.name), caller.all_teams, replaces)


def _removed(removal: Removal | None) -> Removed | None:
    if removal is None:
        return None
    kept = list(removal.kept[:_MOST_KEPT_NAMED])
    return Removed(job=removal.job, objects=len(removal.keys), bytes=removal.bytes, kept=kept)


def _of_caller(request: Request, key: str | None) -> str | None:
    """Make a key unique to its caller: if two callers use the same key, both requests are carried out."""
    return None if key is None else fingerprint(caller_of(request).identity, key)


def _action(master: Master, claims: Claims, action: str) -> Any:
    method, wanted = {
        "pause": (master.pause, JobState.PAUSED),
        "resume": (master.resume, JobState.RUNNING),
        "stop": (master.stop, JobState.STOPPED),
    }[action]

    def act(name: str) -> JobStatus:
        claims.check_state(name, wanted)
        return method(name)

    # In separate threads: a job can be stopped however many requests only read.
    act.__doc__ = f"{action.title()} a job. Harmless twice."
    return act

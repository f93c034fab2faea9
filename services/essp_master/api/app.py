"""Builds the FastAPI application of the master."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from essp_common import distribution
from essp_common.job.spec import JobSpec
from essp_engine.registrations import Registrations
from essp_master.api import conditions, events, health, jobs, logs, page, pools, problems, registrations, usage
from essp_master.api.callers import OwnJobs
from essp_master.api.guard import guarded
from essp_master.config import MasterSettings
from essp_master.pools.reconciler import Reconciler
from essp_master.service import Master
from essp_master.video_jobs.claims import Claims


def create_app(
    master: Master,
    settings: MasterSettings,
    tables: Registrations | None = None,
    reconciler: Reconciler | None = None,
    claims: Claims | None = None,
) -> FastAPI:
    """Return the API of a master. Without a token in the settings, it is open to everyone who can reach it.

    `tables`: the registrations; None if this master has no store for them. `reconciler`: sizes the pools; None if this
    master has no pools. `claims`: what VideoJobs say, which requests must not contradict.
    """
    app = FastAPI(
        title="ESSP",
        version=distribution.version(),
        summary="Train video classifiers straight from video.",
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(guarded, settings=settings)
    problems.install(app)
    app.include_router(jobs.router(master, claims or Claims()))
    app.include_router(events.router(master))
    app.include_router(registrations.router(tables))
    app.include_router(pools.router(reconciler, OwnJobs(master)))
    app.include_router(conditions.router(master))
    app.include_router(usage.router(master))
    app.include_router(logs.router(master))
    app.include_router(health.router(master, reconciler))
    app.include_router(page.router(lambda: app.openapi()))
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Add the components that the routes refer to (the job specification, whose body may be YAML, and problem
    documents) and the answer 429, which every route may give."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = {**schema.pop("$defs", {}), "JobSpec": schema, **problems.schemas()}
        document = described()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"] |= {str(status): answer for status, answer in problems.answers_of(429).items()}
        return document

    app.openapi = openapi  # type: ignore[method-assign]

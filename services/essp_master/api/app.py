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

_OF_FASTAPI = ("HTTPValidationError", "ValidationError")
"""Schemas of FastAPI's own errors, which no route gives."""


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
    parts = (
        jobs.router(master, claims or Claims()),
        events.router(master),
        registrations.router(tables),
        pools.router(reconciler, OwnJobs(master)),
        conditions.router(master),
        usage.router(master),
        logs.router(master),
        health.router(master, reconciler),
        page.router(lambda: app.openapi()),
    )
    app = FastAPI(
        title="ESSP",
        version=distribution.version(),
        summary="Train video classifiers straight from video.",
        docs_url=None,
        redoc_url=None,
        # As they are: `include_router` would build each of them again, when the first request comes.
        routes=[route for part in parts for route in part.routes],
    )
    app.add_middleware(guarded, settings=settings)
    problems.install(app)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Add the components that the routes refer to (the job specification, whose body may be YAML, and problem
    documents) and the answer 429, which every route may give. Drop the 422 that FastAPI adds to a route which gives
    none: errors are problem documents."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas = {**schema.pop("$defs", {}), "JobSpec": schema, **problems.schemas()}
        document = described()
        described_schemas = document.setdefault("components", {}).setdefault("schemas", {})
        described_schemas.update(schemas)
        for name in _OF_FASTAPI:
            described_schemas.pop(name, None)
        for path in document["paths"].values():
            for operation in path.values():
                if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                    del operation["responses"]["422"]
                operation["responses"] |= {str(status): answer for status, answer in problems.answers_of(429).items()}
        return document

    app.openapi = openapi  # type: ignore[method-assign]

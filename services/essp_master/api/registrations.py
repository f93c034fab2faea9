"""Registered extractors and trainers over REST: rows with an ETag, changed under If-Match.

PUT with `If-None-Match: *`    register a new row
PUT with `If-Match: "7"`       change version "7"; 412 if the row has changed since
DELETE with `If-Match: "7"`    remove version "7"; 412 likewise
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import APIRouter, Header, Path, Request, Response

from essp_common.errors import ConfigError
from essp_engine.registrations import Change, ExtractorRow, Kind, Registrations, Row, TrainerRow
from essp_master.api.aside import Aside
from essp_master.api.callers import caller_of
from essp_master.api.problems import PreconditionRequired, answers_of

RowName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
IfMatch = Annotated[str | None, Header(max_length=100, description="The ETag that was seen.")]
IfNoneMatch = Annotated[str | None, Header(pattern=r"^\*$", description="`*`: it must not be there yet.")]
RowT = TypeVar("RowT", ExtractorRow, TrainerRow)


def router(tables: Registrations | None) -> APIRouter:
    """Return the routes of both tables."""
    routes, aside = APIRouter(prefix="/v1", tags=["registrations"]), Aside()

    def known() -> Registrations:
        if tables is None:
            raise ConfigError(
                "this master has nowhere to keep registrations; set ESSP_STATE to a folder of a store", code="missing"
            )
        return tables

    _add_table(routes, aside, known, "extractors", ExtractorRow, lambda: known().extractors())
    _add_table(routes, aside, known, "trainers", TrainerRow, lambda: known().trainers())

    @routes.get("/registrations/changes", operation_id="list_changes", responses=answers_of(401, 403, 422, 503))
    @aside.route
    def list_changes() -> list[Change]:
        """Changes of registrations, with author and time; oldest first."""
        return known().changes()

    return routes


def _add_table(
    routes: APIRouter,
    aside: Aside,
    known: Callable[[], Registrations],
    kind: Kind,
    model: type[RowT],
    rows: Callable[[], dict[str, RowT]],
) -> None:
    def list_rows() -> list[RowT]:
        return [row for _, row in sorted(rows().items())]

    def get_row(name: RowName, response: Response) -> Row:
        row, response.headers["ETag"] = known().row(kind, name)
        return row

    def put_row(
        name: RowName,
        row: RowT,
        request: Request,
        response: Response,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Row:
        if row.name != name:
            raise ConfigError(f"is {row.name!r} in the body and {name!r} in the address", field="name", code="conflict")
        if if_match is None and if_none_match is None:
            raise PreconditionRequired(
                "send If-None-Match: * to register, or If-Match with the ETag you saw to change", code="missing"
            )
        response.headers["ETag"] = known().put(kind, row, caller_of(request).name, if_match)
        return row

    def delete_row(name: RowName, request: Request, if_match: IfMatch = None) -> None:
        if if_match is None:
            raise PreconditionRequired("send If-Match with the ETag you saw", code="missing")
        known().delete(kind, name, caller_of(request).name, if_match)

    put_row.__annotations__["row"] = model  # FastAPI reads the type of the body from here
    _describe(routes, kind, model, [aside.route(call) for call in (list_rows, get_row, put_row, delete_row)])


def _describe(
    routes: APIRouter,
    kind: Kind,
    model: type[ExtractorRow] | type[TrainerRow],
    calls: Sequence[Callable[..., object]],
) -> None:
    """Register the four operations of a table with their paths, names and answers."""
    list_rows, get_row, put_row, delete_row = calls
    single, here, reading = kind.removesuffix("s"), f"/{kind}/{{name}}", (401, 403, 422, 503)
    changing = (*reading, 412, 413, 415, 428)
    routes.get(
        f"/{kind}",
        operation_id=f"list_{kind}",
        summary=f"All registered {kind}",
        response_model=list[model],  # type: ignore[valid-type]
        responses=answers_of(*reading),
    )(list_rows)
    routes.get(
        here,
        operation_id=f"get_{single}",
        summary=f"One {single}",
        response_model=model,
        responses=answers_of(*reading, 404),
    )(get_row)
    routes.put(
        here,
        operation_id=f"put_{single}",
        summary=f"Register or change a {single}",
        response_model=model,
        responses=answers_of(*changing),
    )(put_row)
    routes.delete(
        here,
        operation_id=f"delete_{single}",
        summary=f"Remove a {single}",
        status_code=204,
        responses=answers_of(*changing, 404),
    )(delete_row)

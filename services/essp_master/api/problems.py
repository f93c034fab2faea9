"""Errors of the API as RFC 9457 problem documents (`application/problem+json`).

Every error answer has `type`, `title`, `status` and `detail`; `detail` says what to do. For an invalid job it also has
`errors`, with one entry for each invalid field.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from essp_common.artifacts.removal import OfAnotherJob
from essp_common.errors import ConfigError, Conflict, EsspError, Forbidden, NotFound, PreconditionFailed, TransientError
from essp_common.validation import MOST_PROBLEMS, code_of
from essp_master.pools.port import PlatformRefuses

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class PreconditionRequired(ConfigError):
    """A change that does not name the version that it changes."""


_STATUS: tuple[tuple[type[EsspError], int, str], ...] = (
    (PreconditionRequired, 428, "The version to change is missing"),
    (ConfigError, 422, "The request is not valid"),
    (NotFound, 404, "Not found"),
    (Forbidden, 403, "It is another team's"),
    (PreconditionFailed, 412, "It was changed meanwhile"),
    (Conflict, 409, "The state does not allow it"),
    (TransientError, 503, "A server does not answer"),
    (PlatformRefuses, 502, "The platform refuses"),
)
_MEANINGS = {
    401: "No or wrong token",
    403: "The token lacks the scope, the output is another team's, or a page of another site sent it",
    404: "Not found",
    409: "The state does not allow it; the answer names it",
    412: "It was changed since the given version",
    413: "The body is too large",
    415: "The content type is neither JSON nor YAML",
    422: "Not valid; the answer names the fields",
    428: "The version to change must be given",
    429: "Too many requests; Retry-After gives the seconds to wait",
    502: "The platform refuses; the answer says why",
    503: "A server does not answer",
}


def answers_of(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of these error answers."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in statuses}


class Problem(BaseModel):
    """An error as defined by RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    """What is wrong, and what to do."""
    errors: list[FieldError] = []
    """The invalid fields, with what is wrong with each."""
    job: str = ""
    """The name of the other job whose output would be removed, if that is the error."""


class FieldError(BaseModel):
    """An invalid field of a request."""

    field: str
    code: str
    """The kind of problem in one word: `missing`, `unknown`, `range`, ..."""
    detail: str
    """What is wrong with the field, and what to do."""


def schemas() -> dict[str, Any]:
    """Return the schemas that `answers_of` refers to."""
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs"), "Problem": schema}


class _ProblemResponse(JSONResponse):
    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        """Encode the document. It may quote the request, and JSON can contain text that UTF-8 cannot; such text becomes
        `?`."""
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def problem(
    status: int, title: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """Return one problem document."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return _ProblemResponse(body, status, dict(headers or {}))


def _field_errors(error: ConfigError) -> list[dict[str, str]]:
    """Return the invalid fields with what is wrong with each."""
    return [
        {"field": each.field, "code": each.code, "detail": each.problem}
        for each in error.parts or [error]
        if each.field
    ]


def install(app: Starlette) -> None:
    """Answer every error of `app` with a problem document."""

    async def on_essp_error(request: Request, error: Exception) -> JSONResponse:
        for kind, status, title in _STATUS:
            if isinstance(error, kind):
                more: dict[str, Any] = {"errors": _field_errors(error)} if isinstance(error, ConfigError) else {}
                if isinstance(error, OfAnotherJob):
                    more["job"] = error.job
                headers = {"Retry-After": "1"} if kind is TransientError else None
                return problem(status, title, str(error), headers, **more)
        return problem(500, "It failed", str(error))

    async def on_invalid_request(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        errors = [
            {"field": ".".join(str(p) for p in e["loc"]), "code": code_of(e["type"]), "detail": str(e["msg"])}
            for e in error.errors()[:MOST_PROBLEMS]
        ]
        detail = "; ".join(f"{e['field']}: {e['detail']}" for e in errors)
        return problem(422, "The request is not valid", detail, errors=errors)

    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        status, detail = error.status_code, str(error.detail)
        if status == 404:
            detail = f"nothing is at {request.scope['path']}; see /v1/jobs"
        if status == 400:  # from the framework, for a body that is not JSON or is nested too deeply
            status = 422
        return problem(status, HTTPStatus(status).phrase, detail, error.headers)

    async def on_defect(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.scope["path"], exc_info=error)
        return problem(500, "It failed", "a defect of the master; its log says more")

    app.add_exception_handler(EsspError, on_essp_error)
    app.add_exception_handler(RequestValidationError, on_invalid_request)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_defect)

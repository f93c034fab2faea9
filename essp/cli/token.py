"""`essp token`: make a token for the master's API."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Annotated

import typer
from pydantic import ValidationError

from essp_common.errors import ConfigError
from essp_common.runtime.api_token import ApiToken, Right
from essp_common.validation import problems

_BYTES = 32


def main(
    name: Annotated[str, typer.Argument(help="Owner of the token, as in the log of registrations.")],
    scope: Annotated[
        list[Right] | None, typer.Option(help="Scope of the token; may be repeated (default: read).")
    ] = None,
    team: Annotated[
        str, typer.Option(help="Team for which its bearer starts jobs (ESSP_TEAMS; default: no team).")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print token and entry as one JSON object.")] = False,
) -> None:
    """Make a token. The token is printed to stdout, once; the master gets only its hash, as an entry of
    ESSP_API_TOKENS."""
    token = secrets.token_urlsafe(_BYTES)
    digest = hashlib.sha256(token.encode()).hexdigest()
    try:
        entry = ApiToken(name=name, sha256=digest, scopes=frozenset(scope or [Right.READ]), team=team)
    except ValidationError as error:
        raise ConfigError.together(problems(error, ApiToken)) from error
    if as_json:
        typer.echo(json.dumps({"token": token, "entry": entry.model_dump(mode="json")}))
        return
    typer.echo(token)
    typer.echo(f"entry for the master's list ESSP_API_TOKENS='[...]':\n{entry.model_dump_json()}", err=True)

"""`python -m tools.rest_reference --write`: make `docs/rest.md` from `docs/openapi.json` (`tools/openapi.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tools.written import ROOT, cell, settle, wrapped

DOCS = ROOT / "docs"
PAGE = DOCS / "rest.md"
HEAD = """# REST reference

Made from [openapi.json](openapi.json) by `make docs`; a running master shows the same at `/docs`. Calls need a token
(`Authorization: Bearer ...`, see `essp token`) unless the master was started with `ESSP_API_OPEN`. Errors are answered
as `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)) with `title`, `detail` and `status`.

```shell
curl -H "Authorization: Bearer $TOKEN" --data-binary @job.yaml -H "Content-Type: application/yaml" \\
    https://essp.example/v1/jobs
```

## What is let in

Whoever looks at a foreign web page has a browser that sends what this page wants, to a master that only they can reach.
So every call, with a token or without, is refused unless

- `Host` is localhost, the address that is called, or a name in `ESSP_API_HOSTS`; else 403. The chart sets the names of
  its Service, ingress and route, and `api.hosts` adds others.
- `Origin`, where a browser sends one, is the same as `Host`; else 403. A proxy in front has to pass `Host` on.
- `Sec-Fetch-Site`, likewise, is `same-origin` or `none`; else 403. A link may lead to the page.
- `Content-Type` of a body is `application/json`, for jobs also `application/yaml`; else 415. Without tokens, calls
  without a body need one as well.

`/livez` and `/readyz` answer under every name, for load balancers, and name no job. `/metrics` has the figures of the
process alone, and with a token (scope `metrics` or `read`) those of jobs. There are no cookies, and answers are not to
be stored or framed.

The metrics server of each process (`ESSP_METRICS_PORT`, in the chart 9100) answers `/metrics` if the header `Host` is
an address, a name without dots, a reserved name (`localhost`, `.local`, `.svc`, `.internal`), or a name below a search
domain of `/etc/resolv.conf`, which in a pod are those of its cluster. For any other name it answers 403.

## Whose a job is

A token may belong to a team (`essp token NAME --team TEAM`). Its bearer sees and changes the jobs of that team, and no
others: jobs of other teams are in no list, and asking for one is answered with 404, as if it did not exist. Reasons in
the queue call them "a job of another team". Two things show: a name that another team has taken is refused, and so is
an output that one of its jobs has; neither answer names a job. A
token with the scope `admin` sees all. Where no token has a team, everybody sees all jobs. An `Idempotency-Key` counts
for the token that sent it; without tokens, for the address.
"""
_METHODS = ("get", "post", "put", "delete", "patch")
_EVERYWHERE = ("401", "403", "429")
"""Answers of every call, told once."""


def page() -> str:
    """The whole page."""
    document = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    calls = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in _METHODS
    ]
    parts = [HEAD, *_everywhere(calls)]
    for tag in dict.fromkeys(operation["tags"][0] for *_, operation in calls):
        parts += [f"## {tag.capitalize()}", ""]
        for path, method, operation in calls:
            if operation["tags"][0] == tag:
                parts += _call(path, method, operation)
    parts += ["## Objects", "", "Fields in **bold** are always there.", ""]
    for name in sorted(schemas):
        parts += _object(name, schemas[name])
    return "\n".join(parts).rstrip() + "\n"


def _everywhere(calls: list[tuple[str, str, Any]]) -> Iterator[str]:
    said = {code: answer["description"] for *_, call in calls for code, answer in call["responses"].items()}
    yield "Any call may also be answered by:"
    yield ""
    yield from (f"- {code}: {said[code]}" for code in _EVERYWHERE if code in said)
    yield ""


def _call(path: str, method: str, operation: Any) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "")
    for paragraph in operation.get("description", operation["summary"]).split("\n\n"):
        yield from (*wrapped(paragraph), "")
    rows = [
        f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {cell(each.get('description', ''))} |"
        for each in operation.get("parameters", ())
    ]
    if rows:
        yield from ("| parameter | in | type | |", "|---|---|---|---|", *rows, "")
    if body := operation.get("requestBody"):
        kinds = [f"`{kind}`: {_type(content['schema'])}" for kind, content in body["content"].items()]
        yield from (*wrapped(f"Body: {', '.join(kinds)}."), "")
    for code, answer in operation["responses"].items():
        if code not in _EVERYWHERE:
            what = {_type(content["schema"]) for content in answer.get("content", {}).values() if content.get("schema")}
            given = f" ({', '.join(sorted(what))})" if what and code < "4" else ""
            yield f"- {code}: {answer['description']}{given}"
    yield ""


def _object(name: str, schema: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    if schema.get("description"):
        for paragraph in schema["description"].split("\n\n"):
            yield from (*wrapped(paragraph), "")
    if "enum" in schema:
        yield from (*wrapped(f"One of {', '.join(f'`{value}`' for value in schema['enum'])}."), "")
    required = set(schema.get("required", ()))
    rows = [
        f"| {f'**`{field}`**' if field in required else f'`{field}`'} | {_type(each)} | "
        f"{cell(' '.join(each.get('description', '').split()))} |"
        for field, each in schema.get("properties", {}).items()
    ]
    if rows:
        yield from ("| field | type | |", "|---|---|---|", *rows, "")


def _type(schema: Any) -> str:
    """In words, with links to objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"name -> {_type(schema['additionalProperties'])}"
    kinds = schema.get("type", "anything")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


if __name__ == "__main__":
    settle({PAGE: page()})

"""`python -m tools.cli_reference --write`: make `docs/cli.md` from the commands themselves.

Usage, arguments, options and their defaults come from the commands, examples from `essp/cli/commands.py`. An argument
or option without an explanation is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from essp.cli.commands import EXAMPLES, SECTIONS
from essp.cli.main import EXIT_CODES_TEXT, app
from tools.written import ROOT, cell, settle, wrapped

PAGE = ROOT / "docs" / "cli.md"
HEAD = """# Command line reference

Made from the commands by `make docs`: what `essp COMMAND --help` shows, as a page. Settings that commands take from the
environment (`ESSP_STORES`, ...) are in [the chart's reference](../charts/essp/README.md), with the same names.
"""
_LONGEST = 50
"""Characters of an option with its value, in one cell."""
_COMPLETION = ("--install-completion", "--show-completion", "--help")


def page() -> str:
    """The whole page. Raises `ValueError` for what is not explained."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="essp")
    parts = [HEAD, *wrapped(f"Exit codes: {EXIT_CODES_TEXT}."), ""]
    for title, commands in SECTIONS.items():
        parts += [f"## {title}", ""]
        for name in commands:
            parts += _command(group.get_command(context, name), name, context)  # type: ignore[attr-defined]
    return "\n".join(parts).rstrip() + "\n"


def _command(command: Any, path: str, parent: typer.Context) -> Iterator[str]:
    context = type(parent)(command, info_name=path.rpartition(" ")[2], parent=parent)
    yield from (f"### essp {path}", "")
    help_text = (command.help or command.short_help or "").partition("\f")[0].replace("\b\n", "")
    for paragraph in help_text.strip().split("\n\n"):
        yield from (*wrapped(paragraph), "")
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        usage = " ".join(command.collect_usage_pieces(context)).translate({ord("{"): None, ord("}"): None})
        yield from ("```", f"essp {path} {usage}".rstrip(), "```", "")
    rows = [row for parameter in command.params if (row := _row(parameter, context, path))]
    if rows:
        yield from ("| argument or option | default | |", "|---|---|---|", *rows, "")
    if path in EXAMPLES:
        yield from ("```shell", *EXAMPLES[path], "```", "")
    for name in inner:
        yield from _command(inner[name], f"{path} {name}", context)


def _row(parameter: Any, context: typer.Context, path: str) -> str:
    """A line of the table; empty for what every command has."""
    if set(parameter.opts) & set(_COMPLETION) or getattr(parameter, "hidden", False):
        return ""
    if not parameter.help:
        raise ValueError(f"essp {path}: {parameter.name} has no explanation")
    name, values = parameter.get_help_record(context)[0], ""
    if name.endswith(" range>"):
        name = f"{name.removesuffix(' range>')}{_bounds(parameter.min, parameter.max)}>"
    if len(name) > _LONGEST and "|" in name:  # a list of values, which would not wrap
        name, _, listed = name.partition(" <")
        values = f" One of {', '.join(f'`{value}`' for value in listed.rstrip('>').split('|'))}."
    default = parameter.default
    told = default is not None and default is not False and default not in ((), "", []) and not callable(default)
    shown = f"`{default}`" if told and not parameter.required else ""
    return f"| `{cell(name)}` | {cell(shown)} | {cell(' '.join(parameter.help.split()) + values)} |"


def _bounds(least: float | None, most: float | None) -> str:
    """What a number may be, in words."""
    if least is None:
        return f", up to {most:g}"
    return f", {least:g} or more" if most is None else f", {least:g} to {most:g}"


if __name__ == "__main__":
    settle({PAGE: page()})

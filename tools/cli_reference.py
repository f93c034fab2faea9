"""`python -m tools.cli_reference --write`: make `docs/cli.md` from the commands themselves.

Usage, arguments, options and their defaults come from the commands, examples from `essp/cli/commands.py`. An argument
or option without an explanation is an error. Without `--write` it tells what has drifted and exits with 1.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from essp.cli.commands import EXAMPLES, SECTIONS
from essp.cli.main import EXIT_CODES_TEXT, app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
HEAD = """# Command line reference

Made from the commands by `make docs`: what `essp COMMAND --help` shows, as a page. Settings that commands take from the
environment (`ESSP_STORES`, ...) are in [the chart's reference](../charts/essp/README.md), with the same names.
"""
_COLUMNS = 120
_LONGEST = 50
"""Characters of an option with its value, in one cell."""
_COMPLETION = ("--install-completion", "--show-completion", "--help")


def page() -> str:
    """The whole page. Raises `ValueError` for what is not explained."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="essp")
    parts = [HEAD, *_wrapped(f"Exit codes: {EXIT_CODES_TEXT}."), ""]
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
        yield from (*_wrapped(paragraph), "")
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
    if len(name) > _LONGEST:  # a list of values, which would not wrap
        name, _, listed = name.partition(" <")
        values = f" One of {', '.join(f'`{value}`' for value in listed.rstrip('>').split('|'))}."
    default = parameter.default
    told = default is not None and default is not False and default not in ((), "", []) and not callable(default)
    shown = f"`{default}`" if told and not parameter.required else ""
    return f"| `{_cell(name)}` | {_cell(shown)} | {_cell(' '.join(parameter.help.split()) + values)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(" ".join(paragraph.split()), _COLUMNS, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write the page, or tell what has drifted."""
    made = page()
    if "--write" in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PAGE.name} has drifted from the commands; run `make docs`")


if __name__ == "__main__":
    main()

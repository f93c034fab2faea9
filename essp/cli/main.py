"""`essp`: the command line. Each command's module is loaded only when it is called.

`essp --help` lists the exit codes. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from essp.cli.commands import EXAMPLES, SECTIONS
from essp_common import distribution
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, StorageFull, Unavailable
from essp_common.runtime import variables
from essp_common.runtime.garbage import collect_rarely

EXIT_CODES: tuple[tuple[type[EsspError], int], ...] = (
    (ConfigError, 2),
    (NotFound, 3),
    (Conflict, 4),
    (StorageFull, 1),  # every server answers
    (Unavailable, 6),
)
_MAKE_ROOM = "make room there, or name another place, and give the command again"
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
EXIT_CODES_TEXT = (
    "0 done, 1 failed, 2 wrong usage or settings, 3 not found, 4 the state does not allow it, 5 the master asks for "
    "another token, 6 a server cannot be reached, 7 time is up (essp job wait), 130 interrupted"
)


class LazyGroup(TyperGroup):
    """A command group that imports a command's module when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for section in SECTIONS.values():
            if cmd_name in section:
                return _load(cmd_name, section[cmd_name].target)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve the command. For an unknown name, suggest the closest one."""
        name = args[0] if args else ""
        near = get_close_matches(name, self.list_commands(ctx), n=1)
        if name and not name.startswith("-") and near and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An invalid option is reported in the same words as a field of a job."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if (problems := getattr(error.__cause__, "errors", None)) is not None:
                from essp_common.validation import requirement, shown  # loads pydantic, which this error has done

                found = problems()[0]
                error.message = f"it {requirement(found)}, got {shown(found['input'])}"
            raise

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete names from the table, because loading every command takes seconds."""
        known = {name: command for section in SECTIONS.values() for name, command in section.items()}
        names: dict[str, Any] = {name: TyperCommand(name, help=it.summary) for name, it in known.items()}
        group = TyperGroup(name=self.name, commands=names, params=self.params)
        return group.shell_complete(type(ctx)(group), incomplete)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage("essp", "COMMAND [ARGUMENTS]    (essp COMMAND --help explains one)")
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.summary) for name, command in commands.items()])
        with formatter.section("Options"):
            formatter.write_dl([record for p in self.get_params(ctx) if (record := p.get_help_record(ctx))])
        with formatter.section("Exit codes"):
            formatter.write_text(EXIT_CODES_TEXT)


@cache
def _load(name: str, target: str) -> Any:
    """The command, created once, because a call asks for it twice."""
    module_name, _, attribute = target.partition(":")
    with distribution.needs_extra(f"essp {name}"):
        found = getattr(import_module(module_name), attribute)
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name)(found)
        found = single
    found.rich_markup_mode = None  # plain help: it fits a narrow terminal, a pipe and a text file
    command = typer.main.get_command(found)
    command.name = name
    _explain(command, name)
    return command


def _explain(command: Any, path: str) -> None:
    """Give a command and its sub-commands metavars in capitals and examples, and each sub-command a summary."""
    for name, inner in getattr(command, "commands", {}).items():
        inner.short_help = _first_sentence(inner.help or "")  # the whole sentence; typer would cut it after some words
        _explain(inner, f"{path} {name}")
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
    if path in EXAMPLES:
        command.epilog = "\n".join(("\b", "Examples:", *(f"  {example}" for example in EXAMPLES[path])))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"essp {distribution.version()}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_show_version
    ),
) -> None:
    """Train and evaluate video classifiers straight from compressed video."""
    for line in variables.misspelt(os.environ):
        _say(f"warning: {line}")


def main() -> None:
    """Run `essp`. An error that ESSP raises on purpose becomes one message and an exit code."""
    _fill_standard_streams()
    _take_any_name()
    collect_rarely()
    try:
        _need_a_folder()
        # Also covers modules that a command loads later.
        with distribution.needs_extra(" ".join(["essp", *sys.argv[1:2]])):
            app()
    except EsspError as error:
        _say(f"{error}; {_MAKE_ROOM}" if isinstance(error, StorageFull) else str(error))
        sys.exit(next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1))
    except OSError as error:  # from stdout, or from a file that a command writes directly
        if error.errno not in _DISK_ERRORS:
            raise
        _say(f"{error.filename or 'the output'}: {error.strerror or error}")
        sys.exit(1)
    except MemoryError as error:
        _say(
            f"there is not enough memory{f' ({error})' if str(error) else ''}; give smaller numbers, or less at a time"
        )
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _say(text: str) -> None:
    from essp.cli.console import say  # only errors and warnings need it here

    say(f"essp: {text}")


def _fill_standard_streams() -> None:
    """Open `/dev/null` for every closed standard stream (`essp run job.yaml 2>&-`).

    Otherwise the next opened file gets its number, and a library's messages about a video would be written into that
    file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _take_any_name() -> None:
    """Print characters that the locale cannot encode as escapes, so that a name in a table does not break a command."""
    if isinstance(sys.stdout, TextIOWrapper) and (sys.stdout.errors == "strict" or sys.stdout.encoding != "utf-8"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _need_a_folder() -> None:
    """Check that the working folder exists. Libraries fail without it, each in its own way."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "the folder that you are in has been removed; go to another one (cd) and try again", code="not_found"
        ) from None

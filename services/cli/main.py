"""`essp`: the command line. Each command's module is loaded only when it is called.

Exit codes: 0 ok, 1 failed, 2 wrong usage or configuration, 3 not found, 4 the state does not allow it,
6 a server cannot be reached, 130 interrupted; `services/cli/job.py` tells those of `essp job` alone.
Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, Unavailable

EXIT_CODES: tuple[tuple[type[EsspError], int], ...] = (
    (ConfigError, 2),
    (NotFound, 3),
    (Conflict, 4),
    (Unavailable, 6),
)

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Work with data and jobs": {
        "demo": ("services.cli.demo:main", "Make a labelled video set and run the whole journey on it."),
        "demo-data": (
            "services.cli.demo_data:main",
            "Put the demonstration's videos into a store, and write its jobs.",
        ),
        "init": ("services.cli.init:main", "Write a commented job file for a data set."),
        "validate": ("services.cli.validate:main", "Check a job file, and say what it would do."),
        "run": ("services.cli.run:main", "Run a job in this process; no servers needed."),
        "predict": ("services.cli.predict:main", "Classify videos with a trained model."),
        "report": ("services.cli.report:main", "Make the report of a finished training job."),
        "audit": ("services.cli.audit:main", "Check a job's history against what ESSP promises."),
        "catalog": ("services.cli.catalog:app", "Build and show catalogs of videos."),
        "extractor": ("services.cli.extractor:app", "List, describe, preview and run feature extractors."),
    },
    "Drive a running master": {
        "job": ("services.cli.job:app", "Start, watch, pause, resume and stop jobs over REST."),
        "pool": ("services.cli.pool:app", "Look at the pools of a running master, and set them."),
        "registry": ("services.cli.registry:app", "Register extractors and trainers with a running master."),
        "token": ("services.cli.token:main", "Make a token for the master's API."),
        "deadletter": ("services.cli.deadletter:app", "List, show, replay and purge what could not be processed."),
    },
    "Run services": {
        "master": ("services.master.main:main", "Issue seeds, account for them, serve the REST API."),
        "decoder": ("services.decoder.main:main", "Decode clips."),
        "trainer": ("services.trainer.main:main", "Train one model on one stream."),
        "aggregator": ("services.aggregator.main:main", "Fuse the streams of finished trainings."),
        "predictor": ("services.predictor.main:main", "Score the clips of prediction jobs."),
        "servers": ("services.servers.main:app", "Redis, a Kafka-protocol broker and S3 on this machine."),
        "doctor": ("services.cli.doctor:main", "Check servers, master and machine, and say how to mend them."),
        "setup": ("services.cli.setup:main", "Create topics and buckets, where they are missing."),
    },
}


class LazyGroup(TyperGroup):
    """A command group that imports a command's module when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for section in SECTIONS.values():
            if cmd_name in section:
                return _load(cmd_name, section[cmd_name][0])
        return None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        console = Console()
        console.print("Usage: [bold]essp COMMAND[/] [ARGUMENTS]    (essp COMMAND --help explains one)\n")
        for title, commands in SECTIONS.items():
            table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
            for name, (_, summary) in commands.items():
                table.add_row(f"[bold]{name}[/]", summary)
            console.print(table, "")


def _load(name: str, target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("services", "essp_common"):
            raise
        raise ConfigError(f"essp {name} needs the package {error.name!r}; run: pip install 'essp[embedded]'") from error
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"essp {version('essp')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: bool = typer.Option(
        False, "--version", help="Print the version and leave.", is_eager=True, callback=_show_version
    ),
) -> None:
    """Train and evaluate video classifiers straight from compressed video."""


def main() -> None:
    """Run `essp`; errors that ESSP raises on purpose become one message and an exit code."""
    try:
        app()
    except EsspError as error:
        typer.echo(f"essp: {error}", err=True)
        sys.exit(next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

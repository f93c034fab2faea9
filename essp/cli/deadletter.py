"""`essp deadletter`: what could not be processed, and doing it again.

Dead letters lie on the bus (ESSP_BUS); those of a job that `essp run` ran lie in its output, named by `--from`. Exit
codes are those of `essp`; `replay` ends with 4 when nothing could be published again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from essp.cli.confirmation import Yes, confirm
from essp.deadletters.entries import Filter, Letter, letter_of
from essp.deadletters.replay import obstacle, publish_again, standing
from essp.deadletters.store import Box, BusBox, OutputBox
from essp.uris import as_uri
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.pb.v1.messages_pb2 import DeadLetter
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores, open_bus

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show, replay and purge what could not be processed."
)

From = Annotated[str, typer.Option("--from", help="Output of a job that `essp run` ran, in place of the bus.")]
Job = Annotated[str, typer.Option(help="Only those of this job.")]
Kind = Annotated[str, typer.Option(help="Only those of this kind: damaged, truncated, vanished, crashed, ...")]
Video = Annotated[str, typer.Option(help="Only those whose video id or URI contains this.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `ls` prints them.")]
Everything = Annotated[bool, typer.Option("--all", help="All there are.")]


@app.command("ls")
def list_letters(
    origin: From = "",
    job: Job = "",
    kind: Kind = "",
    video: Video = "",
    last: Annotated[int, typer.Option(help="The newest so many; 0: all.", min=0)] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    with _box(origin) as box:
        found = list(_chosen(box.letters(), Filter(job=job, kind=kind, video=video)))
    shown = found[-last:] if last else found
    if as_json:
        typer.echo(json.dumps([letter.document() for letter in shown], indent=2))
        return
    if not shown:
        typer.echo("there are none", err=True)
        return
    for letter in shown:
        seed = letter.seed
        clip = f"{seed.job} {seed.purpose} {seed.epoch} #{seed.index}" if seed.job else "-"
        typer.echo(f"{letter.id}  {letter.time[:19]}  {letter.kind}  {clip}")
        typer.echo(f"    {seed.video}: {letter.reason}" if seed.video else f"    {letter.reason}")
    if len(shown) < len(found):
        typer.echo(f"the newest {len(shown)} of {len(found)}; --last 0 lists all", err=True)


@app.command()
def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `ls` prints it.")],
    origin: From = "",
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: the whole reason, and the seed that could not be made."""
    with _box(origin) as box:
        letter = next(_chosen(box.letters(), Filter(ids=(identity,))))
    if as_json:
        typer.echo(json.dumps(letter.document(), indent=2))
        return
    document = letter.document()
    seed = document.pop("seed")
    for name, value in document.items():
        typer.echo(f"{name:<12} {value}")
    for name, value in seed.items():
        typer.echo(f"{'seed.' + name:<12} {value}")


@app.command()
def replay(
    ids: Ids = None,
    job: Job = "",
    kind: Kind = "",
    video: Video = "",
    everything: Everything = False,
    as_json: AsJson = False,
) -> None:
    """Publish the original messages again, where their jobs still wait for them.

    Of every other one it says why that would be of no use: the job has ended, another video has taken the place.
    """
    with _box("") as box:
        letters = box.letters()
        chosen = {letter.id: letter for letter in _chosen(letters, _filter(ids, job, kind, video, everything))}
        originals = [letters[identity] for identity in chosen]
        settings = Settings()
        bus = open_bus(settings.bus, settings.bus_login)
        try:
            found = standing(bus, originals)
            problems = {identity: obstacle(letters[identity], found) for identity in chosen}
            for identity, problem in problems.items():
                if problem is None:
                    publish_again(bus, letters[identity])
        finally:
            bus.close()
    if as_json:
        outcomes = [{"id": i, "published": problem is None, "obstacle": problem} for i, problem in problems.items()]
        typer.echo(json.dumps(outcomes, indent=2))
    else:
        for identity, problem in problems.items():
            typer.echo(f"{identity}: {problem or 'published again'}")
    if all(problems.values()):
        raise Conflict("nothing was published again")


@app.command()
def purge(
    ids: Ids = None,
    origin: From = "",
    job: Job = "",
    kind: Kind = "",
    video: Video = "",
    everything: Everything = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Forget dead letters: `ls` shows them no more."""
    with _box(origin) as box:
        chosen = [letter.id for letter in _chosen(box.letters(), _filter(ids, job, kind, video, everything))]
        if not yes:
            confirm(f"Forget {len(chosen)} dead letters?")
        box.purge(chosen)
    typer.echo(json.dumps({"purged": chosen}) if as_json else f"forgot {len(chosen)} dead letters")


def _filter(ids: list[str] | None, job: str, kind: str, video: str, everything: bool) -> Filter:
    if not (ids or job or kind or video or everything):
        raise ConfigError("which ones? give ids, --job, --kind, --video, or --all")
    return Filter(tuple(ids or ()), job, kind, video)


def _chosen(letters: Mapping[str, DeadLetter], wanted: Filter) -> Iterator[Letter]:
    """Those that are meant. Raises `NotFound` for an id that is not there."""
    missing = [identity for identity in wanted.ids if identity not in letters]
    if missing:
        raise NotFound(f"there is no dead letter {', '.join(missing)}; `essp deadletter ls` lists them")
    for identity, message in letters.items():
        letter = letter_of(identity, message)
        if wanted.matches(letter):
            yield letter


@contextmanager
def _box(origin: str) -> Iterator[Box]:
    """The dead letters in a job's output or, without one, on the bus."""
    settings = Settings()
    if origin:
        yield OutputBox(Stores(settings.stores).under(as_uri(origin)))
        return
    if settings.bus == "memory://":
        raise ConfigError(
            "where are they? give --from OUTPUT for a job that `essp run` ran, or set ESSP_BUS to kafka://host:port"
        )
    bus = open_bus(settings.bus, settings.bus_login)
    try:
        yield BusBox(bus)
    finally:
        bus.close()

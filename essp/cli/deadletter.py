"""`essp deadletter`: list the messages that could not be processed, and replay them.

Dead letters are on the bus (ESSP_BUS), or, for a job that `essp run` ran, in the job's output (`--from`). Exit codes
are the same as for `essp`; `replay` exits with 4 if it published no message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from essp.cli.confirmation import Yes, confirm
from essp.deadletters.entries import Entry, Filter, entry_of
from essp.deadletters.replay import obstacle, publish_again, replay_state
from essp.deadletters.store import BusEntryStore, EntryStore, OutputEntryStore
from essp.uris import as_uri
from essp_common.artifacts import layout
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.pb.v1.messages_pb2 import DeadLetter
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores, open_bus

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="List, show, replay and purge messages that could not be processed.",
)

From = Annotated[str, typer.Option("--from", help="Read the output of a job that `essp run` ran, not the bus.")]
Job = Annotated[str, typer.Option(help="Only entries of this job.")]
Kind = Annotated[str, typer.Option(help="Only entries of this kind: damaged, truncated, vanished, crashed, ...")]
Video = Annotated[str, typer.Option(help="Only entries whose video id or URI contains this.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `ls` prints them.")]
Everything = Annotated[bool, typer.Option("--all", help="All entries.")]


@app.command("ls")
def list_entries(
    origin: From = "",
    job: Job = "",
    kind: Kind = "",
    video: Video = "",
    last: Annotated[int, typer.Option(help="Only this many of the newest entries; 0: all.", min=0)] = 50,
    as_json: AsJson = False,
) -> None:
    """List dead letters, oldest first."""
    with _store(origin) as store:
        found = list(_chosen(store.entries(), Filter(job=job, kind=kind, video=video)))
    shown = found[-last:] if last else found
    if as_json:
        typer.echo(json.dumps([entry.document() for entry in shown], indent=2))
        return
    if not shown:
        typer.echo("there are no dead letters", err=True)
        return
    for entry in shown:
        seed = entry.seed
        clip = f"{seed.job} {seed.purpose} {seed.epoch} #{seed.index}" if seed.job else "-"
        typer.echo(f"{entry.id}  {entry.time[:19]}  {entry.kind}  {clip}")
        typer.echo(f"    {seed.video}: {entry.reason}" if seed.video else f"    {entry.reason}")
    if len(shown) < len(found):
        typer.echo(f"the newest {len(shown)} of {len(found)}; --last 0 lists all", err=True)


@app.command()
def show(
    identity: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `ls` prints it.")],
    origin: From = "",
    as_json: AsJson = False,
) -> None:
    """Show one dead letter: the whole reason, and the seed that could not be processed."""
    with _store(origin) as store:
        entry = next(_chosen(store.entries(), Filter(ids=(identity,))))
    if as_json:
        typer.echo(json.dumps(entry.document(), indent=2))
        return
    document = entry.document()
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
    """Publish the original messages again, if their jobs still wait for them.

    For each other entry, print why a replay would be useless: the job has ended, or another video has the index.
    """
    with _store("") as store:
        entries = store.entries()
        chosen = {entry.id: entry for entry in _chosen(entries, _filter(ids, job, kind, video, everything))}
        originals = [entries[identity] for identity in chosen]
        settings = Settings()
        bus = open_bus(settings.bus, settings.bus_login, settings.tenant)
        try:
            found = replay_state(bus, originals)
            problems = {identity: obstacle(entries[identity], found) for identity in chosen}
            for identity, problem in problems.items():
                if problem is None:
                    publish_again(bus, entries[identity])
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
    """Purge dead letters: `ls` no longer shows them."""
    with _store(origin) as store:
        chosen = [entry.id for entry in _chosen(store.entries(), _filter(ids, job, kind, video, everything))]
        if not yes:
            confirm(f"Purge {len(chosen)} dead letters?")
        store.purge(chosen)
    typer.echo(json.dumps({"purged": chosen}) if as_json else f"purged {len(chosen)} dead letters")


def _filter(ids: list[str] | None, job: str, kind: str, video: str, everything: bool) -> Filter:
    if not (ids or job or kind or video or everything):
        raise ConfigError("no entries are selected; give ids, --job, --kind, --video, or --all", code="missing")
    return Filter(tuple(ids or ()), job, kind, video)


def _chosen(entries: Mapping[str, DeadLetter], wanted: Filter) -> Iterator[Entry]:
    """The selected entries. Raises `NotFound` for an unknown id."""
    missing = [identity for identity in wanted.ids if identity not in entries]
    if missing:
        raise NotFound(f"there is no dead letter {', '.join(missing)}; `essp deadletter ls` lists them")
    for identity, message in entries.items():
        entry = entry_of(identity, message)
        if wanted.matches(entry):
            yield entry


@contextmanager
def _store(origin: str) -> Iterator[EntryStore]:
    """The dead letters in a job's output or, without one, on the bus."""
    settings = Settings()
    if origin:
        output = Stores(settings.stores).under(as_uri(origin))
        try:
            output.head(layout.SPEC)
        except NotFound as error:
            raise NotFound(
                f"{origin} is the output of no job ({error}); `output` in a job file says where it is"
            ) from error
        yield OutputEntryStore(output)
        return
    if settings.bus == "memory://":
        raise ConfigError(
            "which dead letters? give --from OUTPUT for a job that `essp run` ran, or set ESSP_BUS to kafka://host:port",
            field="--from",
            code="missing",
        )
    bus = open_bus(settings.bus, settings.bus_login, settings.tenant)
    try:
        yield BusEntryStore(bus)
    finally:
        bus.close()

"""`essp catalog`: build and show catalogs of videos."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from essp.catalog.build import BuildOptions, Built, build
from essp.catalog.layout import Kind
from essp.catalog.merging import COLUMN, merge
from essp.catalog.relocation import relocate
from essp.catalog.sources import others
from essp.catalog.summary import COLUMNS, Amount, Problem, Summary, summarize
from essp.cli.catalog_check import check_command
from essp.cli.console import open_console, say
from essp.cli.reading_progress import LONGEST_S, reading_progress
from essp.uris import as_uri
from essp_common.catalog.file import read_catalog
from essp_common.errors import ConfigError
from essp_common.objects.frames import FRAME_RATE
from essp_common.quantities import counted, duration, size
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.wiring import Adapters, Stores
from essp_engine.decoding.probing import ProbeOptions

_LINE_EVERY_S = 5.0
_MOST_LINES = 10  # of a table whose length depends on the data
_EVERY_PROBLEM = sys.maxsize

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Build, show and check catalogs of videos.")


@app.command("build")
def build_command(
    source: Annotated[
        str, typer.Argument(help="Folder, list or archive of the videos: a path or a URI (s3://bucket/prefix).")
    ],
    out: Annotated[str, typer.Option(help="Where to write the catalog, as in data/videos.parquet.")],
    kind: Annotated[Kind, typer.Option("--source", help="The kind of SOURCE (default: it is recognised).")] = "auto",
    split: Annotated[int, typer.Option(help="UCF-101, HMDB51: number of the train/test division.", min=1)] = 1,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="CSV: column that says what videos share, such as a person (default: `group`, if it exists)."
        ),
    ] = None,
    view_columns: Annotated[
        str | None,
        typer.Option(
            help="CSV: columns with the videos of each view of an event, as in left,right or LEFT=COLUMN "
            "(default: `path:LEFT`, `path:RIGHT`)."
        ),
    ] = None,
    camera: Annotated[
        str | None, typer.Option(help="LeRobot: use only this camera (default: all, as views of each episode).")
    ] = None,
    tolerance_s: Annotated[
        float | None,
        typer.Option(
            help="LeRobot: how many seconds frames may differ from their timestamps (default: the nearest are used, "
            "and a note says how far off they are).",
            min=0,
        ),
    ] = None,
    fps: Annotated[
        float, typer.Option(help="Folders of frames: frames per second, which pictures do not say.")
    ] = FRAME_RATE,
    whole: Annotated[
        bool,
        typer.Option(
            help="Write a row for each file, with its labelled segments as targets (default: a row for each segment)."
        ),
    ] = False,
    background: Annotated[
        str | None,
        typer.Option(
            help="Add a row with this class name for each stretch of a file that is outside its labelled segments."
        ),
    ] = None,
    relative: Annotated[
        bool | None,
        typer.Option(
            "--relative/--absolute",
            help="Store the places of videos relative to the catalog, so that both can be moved together (default: if "
            "all videos are in the catalog's folder or below it).",
        ),
    ] = None,
    salvage: Annotated[
        bool,
        typer.Option(
            "--salvage",
            help="Use the frames before the damage of truncated or damaged files (default: such files are errors).",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Take facts from the index of each file where possible, and decode nothing (default: verify them).",
        ),
    ] = False,
    pool: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Have the decoders of the cluster read the files, by ESSP_BUS and ESSP_CACHE (default: this machine).",
        ),
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Number of files to read at the same time (0: one for each core).", min=0)
    ] = 0,
    timeout_s: Annotated[
        float, typer.Option(help="Processor time that one file may take, in seconds.", min=0.1, max=LONGEST_S)
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Read every video of SOURCE once and write one row each: facts, keyframes, or why it cannot be used.

    SOURCE is one of these: class folders, with or without split folders around them; a CSV file with the columns path,
    label, split, group and start_s, end_s or start_frame, end_frame, or with a column for each view of an event
    (path:LEFT, path:RIGHT); or a published data set: UCF-101, HMDB51, KTH, Hollywood2, CCV, lists of Kinetics (CSV),
    Something-Something and ActivityNet (JSON), mmaction2 (text), webdataset shards (tar), a LeRobot folder
    (lerobot://PATH); or MCAP recordings, whose cameras are copied into video files next to OUT. The recognised format
    is printed first. Videos of one group stay together when validation videos are set aside. Running the command again
    reads only new and changed files; after an interruption it continues where it stopped. With --quick, it reads the
    index of a file instead of decoding it, and decoders verify what the index says; the same command without --quick
    completes the catalog.
    """
    console = open_console(stderr=True)

    def recognised(what: str) -> None:
        say(f"recognised as {what}", console)

    settings = Settings()
    patience_s = settings.store_patience_s
    reading = ProbeOptions(workers or cpu_count(), timeout_s, quick=quick, store_patience_s=patience_s)
    try:
        with _servers(settings, pool) as servers, reading_progress(console, "reading videos") as tell:
            options = BuildOptions(
                kind,
                split,
                group_column,
                view_columns,
                camera,
                tolerance_s,
                fps,
                whole,
                background,
                relative,
                salvage,
                pool=servers,
                probe=reading,
            )
            built = build(as_uri(source), as_uri(out), settings.stores, options, tell, recognised)
    except KeyboardInterrupt:
        say("interrupted; what was read is kept: run the same command again to continue", console)
        raise typer.Exit(130) from None
    summary = summarize(read_catalog(built.store, built.key, COLUMNS))
    if as_json:
        typer.echo(json.dumps({"catalog": as_uri(out), **asdict(summary)}, indent=2))
    else:
        _show(open_console(), summary)
        say(_closing(built, as_uri(out)), console)
    for note in built.notes:
        say(f"note: {note}", console)
    broken = sum(problem.videos for problem in summary.problems if problem.kind in ("truncated", "damaged"))
    if broken and not salvage:
        say(f"note: {counted(broken, 'video')} cut off or damaged; --salvage uses the frames before that", console)
    if not summary.usable.videos:
        say("no video can be used: `essp catalog show --problems` lists why", console)
        raise typer.Exit(1)


@contextmanager
def _servers(settings: Settings, wanted: bool) -> Iterator[Adapters | None]:
    """The bus, cache and stores that decoders use. Raises `ConfigError` if the settings name none."""
    if not wanted:
        yield None
        return
    for name in ("bus", "cache"):
        if getattr(settings, name).startswith("memory:"):
            raise ConfigError(
                f"needs decoders that run already; set ESSP_{name.upper()} to their {name}",
                field="--connect",
                code="missing",
            )
    with closing(Adapters.from_settings(settings)) as adapters:
        yield adapters


@app.command("show")
def show_command(
    catalog: Annotated[str, typer.Argument(help="The catalog: a path or a URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    problems: Annotated[bool, typer.Option(help="List every video that cannot be used, with the reason.")] = False,
) -> None:
    """Print the contents of a catalog: classes, splits, hours, codecs, sizes, GOP lengths, problems."""
    store, key = Stores(Settings().stores).resolve(as_uri(catalog))
    summary = summarize(read_catalog(store, key, COLUMNS), _EVERY_PROBLEM if problems else 3)
    if as_json:
        typer.echo(json.dumps(asdict(summary), indent=2))
    elif problems:
        for problem in summary.problems:
            for example in problem.examples:
                typer.echo(f"{problem.kind}\t{example}")
        for line in summary.events.partial if summary.events is not None else ():
            typer.echo(f"event\t{line}")
    else:
        _show(open_console(), summary)


@app.command("relocate")
def relocate_command(
    catalog: Annotated[str, typer.Argument(help="The catalog: a path or a URI.")],
    old: Annotated[str, typer.Argument(help="The folder where its videos were: a path or a URI.")] = "",
    new: Annotated[str, typer.Argument(help="The folder where they are now.")] = "",
    out: Annotated[str, typer.Option(help="Where to write the new catalog (default: it replaces the old one).")] = "",
    relative: Annotated[
        bool | None,
        typer.Option(
            "--relative/--absolute",
            help="Whether the places of videos are stored relative to the catalog (default: as now, or if all videos "
            "are in the catalog's folder or below it).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Say where the videos of a catalog are now, without decoding them again.

    Each file must have the size and the checksums that the catalog knows. With OLD and NEW, videos below OLD are now
    below NEW. Without them, files are where the catalog says, but were copied, so that their times are others. If any
    file is missing or is another one, nothing is written.
    """
    if bool(old) != bool(new):
        raise ConfigError("give both folders, OLD and NEW, or neither", field="NEW", code="missing")
    before, now, target = (as_uri(path) if path else "" for path in (old, new, out))
    found = relocate(as_uri(catalog), Stores(Settings().stores), before, now, target, relative)
    if as_json:
        typer.echo(json.dumps({"catalog": as_uri(out or catalog), **asdict(found)}, indent=2))
        return
    parts = [f"wrote {as_uri(out or catalog)}: {counted(found.files, 'file')}, {found.moved} in another place"]
    if found.taken:
        parts.append(f"{found.taken} with another time or ETag but the same content as far as it is known")
    say(", ".join(parts), open_console())
    if found.unchecked:
        say(f"note: of {counted(found.unchecked, 'file')} the catalog has no checksum, so only sizes were compared")


@app.command("merge")
def merge_command(
    catalogs: Annotated[
        list[str], typer.Argument(metavar="NAME=CATALOG...", help="A name for each data set, and its catalog.")
    ],
    out: Annotated[str, typer.Option(help="Where to write the catalog of all of them.")],
    column: Annotated[str, typer.Option(help="The column that says which data set a video is from.")] = COLUMN,
    relative: Annotated[
        bool | None,
        typer.Option(
            "--relative/--absolute",
            help="Whether the places of videos are stored relative to the new catalog (default: if all videos are in "
            "its folder or below it).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Write one catalog of several data sets, to train on all of them; no video is opened.

    Rows keep their splits. Classes with the same name become one. Jobs mix the data sets by share with `sampling.mix`;
    without it, each class is drawn equally often.
    """
    named: dict[str, str] = {}
    for given in catalogs:
        name, equals, path = given.partition("=")
        if not equals or not path or name in named:
            problem = "names a data set again" if name in named else "is not a name and a catalog"
            raise ConfigError(f"{given!r} {problem}; write own=own.parquet", field="NAME=CATALOG", code="invalid")
        named[name] = as_uri(path)
    found = merge(named, as_uri(out), Stores(Settings().stores), column, relative)
    if as_json:
        typer.echo(json.dumps({"catalog": as_uri(out), **asdict(found)}, indent=2))
        return
    classes = {name: counted(number, "class") for name, number in found.classes.items()}
    parts = [f"{name} {counted(rows, 'row')} of {classes[name]}" for name, rows in found.rows.items()]
    shares = ", ".join(f"{json.dumps(name)}: 1" for name in found.rows)
    console = open_console()
    say(f"wrote {as_uri(out)}: {', '.join(parts)}; {counted(found.all_classes, 'class')} in all", console)
    say(f"In a job, sampling.mix sets their shares: {{column: {column}, shares: {{{shares}}}}}", console)


app.command("check")(check_command)


def _closing(built: Built, out: str) -> str:
    parts = [f"wrote {out}: read {counted(built.read, 'file')} in {duration(built.elapsed_s)}"]
    if built.by_index or built.by_packets:
        decoded = built.read - built.by_index - built.by_packets
        parts[0] += f" ({built.by_index} by their index, {built.by_packets} by their packets, {decoded} decoded)"
    if built.changed:
        parts.append(f"{built.changed} of them changed")
    if built.reused:
        parts.append(f"{built.reused} unchanged")
    if built.gone:
        parts.append(f"{counted(built.gone, 'file')} no longer there")
    if built.ignored:
        parts.append(f"ignored {others(built.ignored)}")
    return ", ".join(parts)


def _show(console: Console, summary: Summary) -> None:
    """Print the figures as tables."""
    console.print(Text.assemble((summary.source or "catalog", "bold"), f": {_amount(summary.usable)}"), soft_wrap=True)
    left = summary.rows - summary.usable.videos
    if left:
        console.print(f"{left} of {summary.rows} videos cannot be used", highlight=False)
    for line in _events(summary):
        say(line, console)
    if summary.usable.videos:
        _show_usable(console, summary)
    for title, problems in (("note", summary.notes), ("problem", summary.problems)):
        if problems:
            console.print(_problems(title, problems))


def _show_usable(console: Console, summary: Summary) -> None:
    console.print(_splits(summary), _classes(summary))
    for line in _groups(summary):
        say(line, console)
    for title, counts in (("codec", summary.codecs), ("size", summary.sizes), ("frames/s", summary.frame_rates)):
        console.print(_counts(title, counts))
    if summary.gop is not None:
        gop = summary.gop
        seekable = _seekable(summary.seekable, summary.usable.videos)
        console.print(_counts("GOP length (frames)", {k: v for k, v in gop.counts.items() if v}, "groups"))
        say(f"GOP: median {gop.median}, longest {gop.longest} frames; {seekable}", console)


def _seekable(count: int, videos: int) -> str:
    """Whether a clip needs only the frames around it decoded, or the file from its beginning."""
    if count:
        return f"{count} of {counted(videos, 'video')} are seekable: decoding starts at the keyframe before a clip"
    return "no video is seekable: each is decoded from its beginning, which is slow for long ones"


def _amount(amount: Amount) -> str:
    videos, frames = counted(amount.videos, "video"), counted(amount.frames, "frame")
    return f"{videos}, {frames}, {_hours(amount.hours)}, {size(amount.bytes)}"


def _splits(summary: Summary) -> Table:
    table = _table("split", "videos", "frames", "length", "bytes")
    for name, amount in summary.splits.items():
        table.add_row(
            name or "(none)", f"{amount.videos}", f"{amount.frames}", _hours(amount.hours), size(amount.bytes)
        )
    return table


def _groups(summary: Summary) -> Iterator[str]:
    """The number of groups, and a warning if a group is in several splits."""
    if not summary.groups:
        return
    counts = ", ".join(f"{count} in {name or '(none)'}" for name, count in summary.groups.items())
    yield f"groups: {counts}; a group stays whole where validation videos are set aside"
    if summary.straddling:
        group, splits = next(iter(summary.straddling.items()))
        many = counted(len(summary.straddling), "group") + (" has" if len(summary.straddling) == 1 else " have")
        yield (
            f"warning: {many} videos in several splits, such as {group} in "
            f"{' and '.join(split or '(none)' for split in splits)}: figures of such a split flatter the model"
        )


def _events(summary: Summary) -> Iterator[str]:
    """The number of events and of their views, and what is wrong with events that lack one."""
    events = summary.events
    if events is None:
        return
    views = ", ".join(f"{name} {count}" for name, count in events.views.items())
    yield f"{counted(events.count, 'event')}, {events.whole} with all views; videos of each view: {views}"
    for line in events.partial:
        yield f"  {line}"
    if (more := events.count - events.whole - len(events.partial)) > 0:
        yield f"  ... and {more} more without all views (--problems lists them)"


def _classes(summary: Summary) -> Table:
    table = _table(counted(len(summary.classes), "class"), *(name or "(none)" for name in summary.splits))
    shown = dict(sorted(summary.classes.items())[:_MOST_LINES])
    for name, counts in shown.items():
        table.add_row(name or "(unlabelled)", *(f"{counts.get(split, 0)}" for split in summary.splits))
    if len(shown) < len(summary.classes):
        table.add_row(f"... and {len(summary.classes) - len(shown)} more (--json has all)")
    return table


def _counts(title: str, counts: dict[str, int], unit: str = "videos") -> Table:
    table = _table(title, unit)
    for name, count in list(counts.items())[:_MOST_LINES]:
        table.add_row(name, f"{count}")
    if len(counts) > _MOST_LINES:
        rest = list(counts.values())[_MOST_LINES:]
        table.add_row(f"... and {len(rest)} others", f"{sum(rest)}")
    return table


def _problems(title: str, problems: Sequence[Problem]) -> Table:
    table = _table(title, "videos")
    table.add_column("for example", overflow="fold")
    for problem in problems:
        table.add_row(problem.kind, f"{problem.videos}", "\n".join(problem.examples))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right")
    return table


def _hours(hours: float) -> str:
    return duration(hours * 3600)

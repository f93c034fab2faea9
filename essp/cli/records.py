"""`essp records`: build, show, verify and change data sets of records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from essp.cli.console import open_console, say
from essp.cli.records_upkeep import DataSetArgument, clean_command, delete_command
from essp.cli.sizes import bytes_between
from essp.folders import store_for
from essp.records.build import BuildOptions, Built, Encode, Progress, build
from essp.records.items import Source
from essp.records.selection import NO_LABEL
from essp.records.sources import FRAMES, SourceOptions, open_source
from essp.uris import as_uri
from essp_common.quantities import counted, size
from essp_common.records.chunk import Encoding
from essp_common.records.reader import RecordReader, verify
from essp_common.records.versions import DataSet
from essp_common.records.writer import LEAST_FILE_BYTES, MOST_FILE_BYTES
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

_MOST_LINES = 10
_USUAL_SIDE = 224

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Build, show, verify and change data sets of records."
)
VersionOption = Annotated[int | None, typer.Option(help="Number of the version (default: the newest).", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


@app.command("build")
def build_command(
    source: Annotated[
        str, typer.Argument(help="Folder, CSV file, archive, COCO annotations or catalog: a path or URI.")
    ],
    out: Annotated[str, typer.Option(help="Folder of the data set, as in data/cifar10.")],
    encode: Annotated[
        Encode | None,
        typer.Option(
            help="keep: the files as they are; raw: as numbers, fastest to read; jpeg: as JPEG (default: keep, and "
            "jpeg for boxes and frames)."
        ),
    ] = None,
    side: Annotated[
        int | None,
        typer.Option(
            "--size", help="Scale each image to cover a square with this side, and crop it to the square.", min=1
        ),
    ] = None,
    within: Annotated[
        str, typer.Option(help="Use only this folder of SOURCE, or this split of a catalog, as in train.")
    ] = "",
    images: Annotated[
        str, typer.Option(help="COCO: folder, .zip or .tar of the images (default: next to the annotations).")
    ] = "",
    whole: Annotated[
        bool,
        typer.Option(help="COCO: use whole images, labelled by their largest object (default: a record for each box)."),
    ] = False,
    frames: Annotated[
        int, typer.Option("--frames-a-video", help="Catalog: number of frames of each video, evenly spaced.", min=1)
    ] = FRAMES,
    file_size: Annotated[
        str,
        typer.Option(help="Approximate size of each file, 1MiB to 4GiB; a build needs twice as much memory."),
    ] = "256MiB",
    append: Annotated[bool, typer.Option(help="Add the records to the existing ones, as a new version.")] = False,
    workers: Annotated[
        int, typer.Option(help="Number of images to decode at the same time (0: one for each core).", min=0)
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be built.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the images of SOURCE into a few large files, from which `essp.Records` trains.

    SOURCE is one of these: a folder for each class; a CSV file with the columns path and label; a .tar or .zip archive
    of folders, or with a .cls file for each image (webdataset); cifar-10-binary.tar.gz or cifar-100-binary.tar.gz; a
    COCO annotation file, whose boxes become records; or a catalog, whose videos provide frames. Unusable items are
    named and left out. If a build is interrupted, existing versions stay intact.
    """
    settings = Settings()
    stores = Stores(settings.stores, settings.store_patience_s)
    console = open_console(stderr=True)
    file_bytes = bytes_between(file_size, "--file-size", LEAST_FILE_BYTES, MOST_FILE_BYTES)
    options = BuildOptions(encode, None if side is None else (side, side), append, workers, file_bytes)
    wanted = SourceOptions(within, as_uri(images) if images else "", whole, frames)
    with open_source(as_uri(source), stores, wanted) as found:
        say(_recognised(source, found), console)
        if dry_run:
            if as_json:
                typer.echo(json.dumps(_plan(source, found), indent=2))
            return
        data_set = DataSet(store_for("--out", as_uri(out), stores))
        try:
            with _progress(console) as tell:
                built = build(found, data_set, options, tell)
        except KeyboardInterrupt:
            console.print("interrupted; nothing was added")
            raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(asdict(built), indent=2))
        return
    _tell_built(console, out, built, RecordReader(data_set).shape is None, side)


@app.command("show")
def show_command(data_set: DataSetArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Print the contents of a data set: versions, classes, sizes, encodings."""
    found = DataSet(Stores(Settings().stores).under(as_uri(data_set)))
    reader = RecordReader(found, version)
    table = reader.table
    names = [*reader.classes, NO_LABEL]
    classes = Counter(names[label] for label in table["label"].tolist())
    shapes = Counter(
        "as in its file" if entry[0] == Encoding.ENCODED else f"{entry[1]}x{entry[2]}x{entry[3]}"
        for entry in table[["encoding", "height", "width", "channels"]].tolist()
    )
    lengths = table["length"].astype(np.int64)
    facts = {
        "version": reader.number,
        "versions": found.versions(),
        "records": len(reader),
        "deleted": sum(end - first for first, end in reader.version.deleted),
        "files": len(reader.version.files),
        "bytes": int(lengths.sum()),
        "shortest": int(lengths.min(initial=0)),
        "longest": int(lengths.max(initial=0)),
        "classes": {name: classes[name] for name in names if classes[name]},
        "sizes": dict(shapes.most_common()),
        "damaged": reader.damaged,
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    console = open_console()
    several = f" of {', '.join(map(str, found.versions()))}" if len(found.versions()) > 1 else ""
    told = (
        f" version {reader.number}{several}: {counted(len(reader), 'record')} in "
        f"{counted(len(reader.version.files), 'file')}, {size(int(lengths.sum()))}"
    )
    console.print(Text.assemble((data_set, "bold"), told), soft_wrap=True)
    console.print(_counts(counted(len(reader.classes), "class"), classes), _counts("size", shapes))
    for what, why in reader.damaged.items():
        say(f"damaged: {what}: {why}", console)


@app.command("verify")
def verify_command(data_set: DataSetArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Read every byte and compare it with its checksums; exit status 1 if something is damaged."""
    found = DataSet(Stores(Settings().stores).under(as_uri(data_set)))
    number, content = found.version(version)
    damaged: dict[str, list[str]] = {}
    console = open_console(stderr=True)
    with _bar(console) as bar:
        task = bar.add_task("reading files", total=len(content.files), note="")
        for file, faults in verify(found, number):
            bar.advance(task)
            if faults:
                damaged[file.key] = faults
    if as_json:
        typer.echo(json.dumps({"version": number, "files": len(content.files), "damaged": damaged}, indent=2))
    for key, faults in {} if as_json else damaged.items():
        for fault in faults:
            typer.echo(f"{key}: {fault}")
    if damaged:
        verb = "is" if len(damaged) == 1 else "are"
        console.print(
            f"{len(damaged)} of {len(content.files)} files {verb} damaged; what is whole in them is still read"
        )
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"version {number}: {counted(content.records, 'record')} are whole")


app.command("delete")(delete_command)
app.command("clean")(clean_command)


def _recognised(name: str, source: Source) -> str:
    records = counted(len(source.items), source.unit)
    wrong = f", {len(source.problems):,} left out" if source.problems else ""
    return f"{name}: {source.recognised}; {records}, {counted(len(source.labels), 'label')}{wrong}"


def _plan(name: str, source: Source) -> dict[str, object]:
    return {
        "source": name,
        "recognised": source.recognised,
        "records": len(source.items),
        "labels": source.labels,
        "problems": source.problems,
    }


def _tell_built(console: Console, out: str, built: Built, scaled: bool, side: int | None) -> None:
    """Print the result of a build. `scaled`: a loader needs to know the image size."""
    for name, why in list(built.problems.items())[:_MOST_LINES]:
        say(f"left out {name}: {why}", console)
    if len(built.problems) > _MOST_LINES:
        console.print(f"... and {len(built.problems) - _MOST_LINES} more (--json has all)")
    arguments = f"{out!r}, size={side or _USUAL_SIDE}" if scaled else repr(out)
    say(
        f"wrote {out} version {built.version}: {counted(built.records, 'record')}, {size(built.bytes)}, in "
        f"{built.elapsed_s:.1f} s; train on it with essp.Records({arguments})",
        console,
    )


def _bar(console: Console) -> Bar:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Bar(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[Progress], None]]:
    with _bar(console) as bar:
        task = bar.add_task("encoding images", total=None, note="")

        def tell(now: Progress) -> None:
            note = size(now.bytes_done) + (f", {now.problems} left out" if now.problems else "")
            bar.update(task, total=now.total, completed=now.done, note=note)

        yield tell


def _counts(title: str, counts: Counter[str]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(title, overflow="fold")
    table.add_column("records", justify="right")
    for name, count in counts.most_common(_MOST_LINES):
        table.add_row(name, f"{count}")
    if len(counts) > _MOST_LINES:
        table.add_row(f"... and {len(counts) - _MOST_LINES} more (--json has all)")
    return table

"""`essp catalog check`: problems of the videos of a catalog, on the terminal and as a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from essp.catalog.check.findings import KINDS, LONG_GOP, Wanted
from essp.catalog.check.page import render
from essp.catalog.check.run import TIMEOUT_S, Check, CheckOptions, Report
from essp.cli.console import open_console, say
from essp.cli.reading_progress import LONGEST_S, reading_progress
from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.quantities import duration
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_engine.decoding.probing import ProbeOptions

_EXAMPLES = 3


def check_command(
    catalog: Annotated[str, typer.Argument(help="The catalog: a path or a URI.")],
    page: Annotated[
        str | None, typer.Option(help="Where to write the page (default: the catalog's name with .check.html).")
    ] = None,
    frames: Annotated[int, typer.Option(help="Number of frames in the clips that you train on.", min=1)] = 16,
    stride: Annotated[
        int, typer.Option(help="Distance between the frames of such a clip; 1: consecutive frames.", min=1)
    ] = 1,
    long_gop: Annotated[
        int, typer.Option(help="Report videos with more frames than this between two keyframes.", min=1)
    ] = LONG_GOP,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Read packets without decoding them: find no cuts, black or frozen frames, or near-duplicates.",
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Check only the first videos, this many.", min=1)] = None,
    sample: Annotated[
        int | None, typer.Option(help="Check only this many videos, spread over the catalog.", min=1)
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Number of files to read at the same time (0: one for each core).", min=0)
    ] = 0,
    timeout_s: Annotated[
        float, typer.Option(help="Processor time that one file may take, in seconds.", min=0.1, max=LONGEST_S)
    ] = TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print every finding as JSON.")] = False,
) -> None:
    """Look for problems in the videos of CATALOG: decode each once, and write a page of the findings.

    It finds wrong frame counts, damage, copies and near-duplicates (above all between splits), groups in several
    splits, cuts, black and frozen stretches, missing keyframes, variable frame rates, odd sizes, uneven classes, and
    videos shorter than a clip. If interrupted, it shows the findings so far, and the same command continues from there.
    The exit status is 1 if there are errors: findings that make results wrong.
    """
    if limit is not None and sample is not None:
        raise typer.BadParameter("--limit and --sample exclude each other")
    uri = as_uri(catalog)
    out = as_uri(page) if page is not None else f"{uri.removesuffix('.parquet')}.check.html"
    settings = Settings()
    probe = ProbeOptions(workers or cpu_count(), timeout_s, store_patience_s=settings.store_patience_s)
    options = CheckOptions(Wanted(frames, stride, long_gop), fast, limit, sample, probe)
    console = open_console(stderr=True)
    check = Check(uri, out, settings.stores, options)
    if PurePosixPath(out).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{page}: the page is HTML; name it for example check.html", field="--page", code="invalid")
    interrupted = False
    try:
        with reading_progress(console, "checking videos") as tell:
            check.read(tell)
    except KeyboardInterrupt:
        interrupted = True
    report = check.report()
    written = check.write(render(report).encode())
    if as_json:
        typer.echo(json.dumps(_figures(report, written), indent=2))
    else:
        _show(open_console(), report)
        say(f"wrote {written} in {duration(report.elapsed_s)}", console)
    if interrupted:
        left = report.files_total - report.files
        say(f"interrupted, {left} files were not read: run the same command again to continue", console)
        raise typer.Exit(130)
    if any(finding.gravity == "error" for finding in report.findings):
        raise typer.Exit(1)


def _figures(report: Report, page: str) -> dict[str, object]:
    findings = [
        {"gravity": finding.gravity, **{k: v for k, v in asdict(finding).items() if k not in ("shows", "weight")}}
        for finding in report.findings
    ]
    return {
        "catalog": report.catalog,
        "page": page,
        "videos": report.videos,
        "videos_total": report.videos_total,
        "files": report.files,
        "files_total": report.files_total,
        "decoded": report.decoded,
        "counts": report.counts(),
        "findings": findings,
    }


def _show(console: Console, report: Report) -> None:
    """A line for each kind of finding, followed by the remedies."""
    how = "" if report.decoded else ", packets only"
    told = f" of {report.videos_total} videos checked, {report.files} files read{how}"
    console.print(Text.assemble((str(report.videos), "bold"), told))
    counts = report.counts()
    if not counts:
        console.print("nothing found")
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("", "found", "what"):
        table.add_column(name, justify="right" if name == "found" else "left", overflow="fold")
    table.add_column("for example", overflow="fold")
    for kind, count in counts.items():
        examples = [f"{one.subject}: {one.what}" for one in report.findings if one.kind == kind][:_EXAMPLES]
        about = KINDS[kind]
        table.add_row(about.gravity, str(count), about.title, "\n".join(examples))
    console.print(table)
    for kind in counts:
        say(f"{KINDS[kind].title}: {KINDS[kind].remedy}", console)

"""`essp records delete` and `clean`: remove records and leftover files."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from essp.cli.confirmation import Yes, confirm
from essp.cli.console import say
from essp.records.selection import NO_LABEL, keys_of, selected
from essp.uris import as_uri
from essp_common.errors import ConfigError, NotFound
from essp_common.quantities import counted, size
from essp_common.records.orphans import orphans
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

DataSetArgument = Annotated[str, typer.Argument(help="The data set: a path or a URI, as given to --out.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]


def delete_command(
    data_set: DataSetArgument,
    keys: Annotated[
        list[str] | None, typer.Option(help="Records with these keys, as in 17 or 0-99; may be repeated.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help=f"Records of this class, or {NO_LABEL}; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a version without some records: those with the given keys, labels, or both.

    A key is the number by which `essp records verify`, the log and `batch.meta["record"]` identify a record. Earlier
    versions keep all their records. So no disk space is freed, and a training that names its version still sees the
    same records.
    """
    if not (keys or label):
        raise ConfigError("which records? give --keys, --label, or both", code="missing")
    found = DataSet(Stores(Settings().stores).under(as_uri(data_set)))
    reader = RecordReader(found)
    ranges = selected(reader, [keys_of(one) for one in keys or ()], label or ())
    count = sum(map(len, ranges))
    if not count:
        raise NotFound(f"version {reader.number} of {data_set} has no such record")
    outcome = {"deleted": count, "left": reader.version.records - count, "version": None if dry_run else 0}
    if not dry_run:
        if not yes:
            confirm(f"Delete {counted(count, 'record')} of {reader.version.records:,}?")
        outcome["version"] = found.delete(ranges, reader.number)
    if as_json:
        typer.echo(json.dumps(outcome))
    elif dry_run:
        typer.echo(f"would delete {counted(count, 'record')} of {reader.version.records:,}")
    else:
        typer.echo(f"deleted {counted(count, 'record')}; version {outcome['version']} has {outcome['left']:,}")


def clean_command(
    data_set: DataSetArgument,
    older_than: Annotated[
        float, typer.Option(help="Hours without a write after which a build counts as dead.", min=0)
    ] = 24.0,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove files that a killed build left behind. Files of a version are kept, however old it is.

    A running build also has files without a version. It is recognised by its newest file: builds write a file every few
    minutes, so one that has written nothing for a day is considered dead.
    """
    found = DataSet(Stores(Settings().stores).under(as_uri(data_set)))
    left = orphans(found, time.time(), older_than * 3600)
    what = f"{counted(len(left.keys), 'file')}, {size(left.bytes)}"
    if left.keys and not dry_run:
        if not yes:
            confirm(f"Remove {what}?")
        for key in left.keys:
            found.store.delete(key)
    if as_json:
        outcome = {"files": list(left.keys), "bytes": left.bytes, "alive": left.alive, "removed": not dry_run}
        typer.echo(json.dumps(outcome, indent=2))
        return
    verb = "would remove" if dry_run else "removed"
    typer.echo(f"{verb} {what}" if left.keys else "there is nothing to remove")
    if left.alive:
        say(
            f"{counted(left.alive, 'file')} of builds that wrote something in the last {older_than:g} hours stay, "
            "since they may be running"
        )

"""`essp plan`: how many workers a job needs, and its bottleneck, from running the job for a few seconds."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Column, Table

from essp.capacity.extraction import DataSet, Machines, check_extractable, comparison, sample
from essp.capacity.limits import Servers
from essp.capacity.measuring import Costs, measure
from essp.capacity.report import Plan, Wanted, plan
from essp.cli.bench_options import PlotOption, shown_progress
from essp.cli.console import open_console
from essp.cli.dashboard import duration
from essp.cli.interrupt import leaving_at_once
from essp.cli.job_file import JobFile, Named, Sets, load_job
from essp.embedded.devices import check_devices
from essp.folders import written
from essp_common.catalog.file import read_catalog
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.quantities import counted, parse_bytes, percent, size
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.process import set_up_logging
from essp_common.wiring import Stores


def main(
    job: JobFile,
    rate: Annotated[
        float, typer.Option(help="Clips per second for each trainer; 0: as many as this machine can produce.", min=0)
    ] = 0.0,
    gpus: Annotated[int, typer.Option(help="Number of GPUs of all trainers together, for the price.", min=0)] = 0,
    cores: Annotated[
        int, typer.Option(help="Without --rate: number of cores of the machine (0: as many as this one has).", min=0)
    ] = 0,
    seconds: Annotated[float, typer.Option(help="Duration of the measurement, in seconds.", min=1)] = 10.0,
    redis: Annotated[str, typer.Option(help="Bytes per second that one Redis server can receive and send.")] = "1GB",
    redis_servers: Annotated[int, typer.Option(help="Number of Redis servers (0: as many as needed).", min=0)] = 0,
    network: Annotated[
        str,
        typer.Option(help="Bytes per second of the network link of a Redis server, in each direction (0: no limit)."),
    ] = "0",
    core_price: Annotated[float, typer.Option(help="Price of one core for an hour.", min=0)] = 0.0,
    gpu_price: Annotated[float, typer.Option(help="Price of one GPU for an hour.", min=0)] = 0.0,
    against: Annotated[
        Literal["extract"] | None,
        typer.Option(
            help="Also say what it would cost to extract first: to write all frames and features of the catalog's "
            "videos to disk, as pictures, and to train from these. A sample of the videos is extracted into memory."
        ),
    ] = None,
    videos: Annotated[
        int, typer.Option(help="With --against: for a data set of this many such videos (0: the catalog's).", min=0)
    ] = 0,
    hours: Annotated[
        float, typer.Option(help="With --against: for a data set of this many hours of such video.", min=0)
    ] = 0.0,
    within: Annotated[
        float,
        typer.Option(help="With --against: hours that all epochs may take, for the number of machines.", min=0.01),
    ] = 24.0,
    sets: Sets = None,
    name: Named = None,
    plot: PlotOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say how many decoders and extractors a job needs, how much data it moves, and which part is the bottleneck.

    The job runs in this process for some seconds, in a temporary folder, to measure the cost of a clip in each part.
    Then clips are sent through the pools of a simulated machine or cluster. Nothing of the run is kept.
    """
    numbers = {"--rate": rate, "--seconds": seconds, "--hours": hours, "--within": within}
    for option, value in (numbers | {"--core-price": core_price, "--gpu-price": gpu_price}).items():
        if math.isinf(value):  # the options themselves refuse NaN
            raise ConfigError("must be a finite number", field=option, code="range")
    spec = load_job(job, None, sets, name)
    if not spec.trainers:
        raise ConfigError("essp plan: takes a job with trainers", code="unsupported")
    set_up_logging(Settings(log_level="ERROR"))
    servers = Servers(_bytes(redis, "--redis"), redis_servers, _bytes(network, "--network"))
    wanted = Wanted(rate, cores or cpu_count(), gpus, servers, core_price, gpu_price, Settings().partitions)
    check_devices(spec)
    if against is None and (videos or hours):
        raise ConfigError("for --against extract", field="--videos" if videos else "--hours", code="conflict")
    if against is not None:
        check_extractable(spec)
    costs = _measured(spec, seconds)
    found = plan(spec, costs, wanted)
    if against is not None:
        found.facts["against"] = _against(spec, costs, seconds, (videos, hours), Machines(within, wanted.cores))
    if as_json:
        typer.echo(json.dumps(found.facts, indent=2))
    else:
        _print(open_console(), found)
    if plot is not None:
        from essp.capacity.plot import drawn  # matplotlib, which only this needs

        with written(plot):
            plot.write_bytes(drawn(found.limits, found.outcome, rate))


def _measured(spec: JobSpec, seconds: float) -> Costs:
    console = open_console(stderr=True)
    with leaving_at_once("leaving; nothing is kept"), shown_progress(console) as show:
        return measure(spec, Settings(), seconds, show)


def _against(
    spec: JobSpec, costs: Costs, seconds: float, asked: tuple[int, float], machines: Machines
) -> dict[str, Any]:
    """Extracting first, compared with the job. `asked`: videos and hours of a data set; 0: the catalog's."""
    console = open_console(stderr=True)
    rows = read_catalog(*Stores(Settings().stores).resolve(spec.data.catalog)).view(None).rows
    with leaving_at_once("leaving; nothing is kept"), shown_progress(console) as show:
        found = sample(spec, rows, seconds, show)
    present = DataSet.of(rows)
    return comparison(spec, costs, found, present, present.scaled(*asked), machines)


def _bytes(text: str, option: str) -> float:
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(str(error), field=option, code="type") from error
    assert isinstance(value, int)
    if not value and option == "--redis":
        raise ConfigError("0 would carry nothing; write for example 1GB", field=option, code="range")
    return float(value)


def _print(console: Console, found: Plan) -> None:
    facts = found.facts
    console.print(_measured_table(facts["measured"]))
    console.print(_pool_table(facts))
    rows = Table.grid(padding=(0, 2))
    for name, text in _lines(facts):
        rows.add_row(name, text)
    console.print(rows)
    if (against := facts.get("against")) is not None:
        console.print(_against_table(against))
        console.print(_against_text(against))


def _against_table(against: dict[str, Any]) -> Table:
    """What each way costs."""
    extract, essp, total = against["extract"], against["essp"], against["core_hours"]
    kept = ", ".join(f"{name} {size(count)}" for name, count in extract["bytes"].items())
    epochs = counted(against["epochs"], "epoch")
    needed, machines = f"machines of {counted(against['machines']['cores'], 'core')}", against["machines"]
    table = Table("", "extract first", "stream", box=None, padding=(0, 2, 0, 0))
    table.add_row("on disk", f"{kept}: {extract['times_videos']:,.1f} x the videos, {extract['files']:,} files", "0")
    table.add_row("before the first clip", f"{_core_time(extract['core_hours'])}", "0")
    table.add_row("an epoch", _core_time(extract["epoch_core_hours"]), _core_time(essp["epoch_core_hours"]))
    table.add_row(epochs, _core_time(total["extract"]), _core_time(total["essp"]))
    table.add_row(f"{needed}, {machines['within_hours']:g} h", f"{machines['extract']:,}", f"{machines['essp']:,}")
    return table


def _against_text(against: dict[str, Any]) -> str:
    data, sampled, pays = against["data"], against["sample"], against["pays_after_epochs"]
    what = f"{counted(data['videos'], 'video')}, {data['hours']:,.1f} h, {size(data['bytes'])}"
    by = f"by a sample of {counted(sampled['frames'], 'frame')} of {counted(sampled['videos'], 'video')}"
    left = f"; without {', '.join(sampled['left_out'])}, which only a decoder has" if sampled["left_out"] else ""
    paid = "never" if pays is None else f"from {counted(pays, 'epoch')} with the same parameters on"
    return f"{what}; {by}{left}. Extracting first costs less processor time: {paid}"


def _core_time(hours: float) -> str:
    """Processor time."""
    return f"{hours:,.1f} core-hours" if hours >= 1 else f"{3600 * hours:,.1f} core-seconds"


def _measured_table(measured: dict[str, Any]) -> Table:
    table = Table(
        f"measured on {measured['clips']} clips", Column("ms a clip", justify="right"), box=None, padding=(0, 2, 0, 0)
    )
    for part, milliseconds in measured["milliseconds"].items():
        table.add_row(part, f"{milliseconds:.2f}")
    return table


def _pool_table(facts: dict[str, Any]) -> Table:
    columns = [Column(name, justify="right") for name in ("workers", "busy", "clips/s at most")]
    table = Table("pool", *columns, box=None, padding=(0, 2, 0, 0))
    for pool in facts["pools"]:
        workers = f"{pool['workers']}"
        if facts["asked"] and pool["workers_a_pod"] > 1:
            workers += f" ({pool['pods']} pods of {pool['workers_a_pod']})"
        table.add_row(pool["name"], workers, percent(pool["busy"], 0), f"{pool['most_clips_per_s']:,.0f}")
    return table


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    traffic, epoch, measured = facts["traffic"], facts["epoch"], facts["measured"]
    asked = f" of {facts['asked']:,.0f} asked for" if facts["asked"] else ""
    sizes = ", ".join(f"{part} {size(count)}" for part, count in measured["bytes"].items())
    lines = [
        ("rate", f"{facts['simulated_clips_per_s']:,.1f} clips/s{asked}, by simulation; this machine: "
                 f"{measured['clips_per_s']:,.1f} while it was measured"),
        ("bottleneck", facts["bottleneck"]),
        ("epoch", f"{epoch['clips']:,} clips in {duration(epoch['seconds'])}"),
        ("a clip", f"{sizes}; {size(measured['read_bytes'])} read of its video"),
    ]  # fmt: skip
    moved = f"{size(traffic['cache_written'])}/s in, {size(traffic['cache_read'])}/s out"
    if facts["asked"]:
        lines.append(("Redis", f"{moved}: {counted(facts['redis_servers'], 'server')}"))
        hour = facts["hour"]
        price = f", {hour['price']:,.2f} an hour" if hour["price"] else ""
        about = "" if measured["enough"] else "at most about "
        lines.append(("needs", f"{about}{counted(hour['cores'], 'core')}, {counted(hour['gpus'], 'GPU')}{price}"))
    lines.append(("store", f"{size(traffic['store_read'])}/s of compressed video"))
    if facts["asked"] and (enough := facts["budget"]["enough"]) > facts["budget"]["bytes"]:
        lines.append(("limits.budget", f"{size(enough)} would be enough, {size(facts['budget']['bytes'])} is not"))
    return lines

"""`essp plan`: how many workers a job needs, and its bottleneck, from running the job for a few seconds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

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
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.quantities import counted, parse_bytes, percent, size
from essp_common.runtime.config import Settings
from essp_common.runtime.process import cpu_count, set_up_logging


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
    sets: Sets = None,
    name: Named = None,
    plot: PlotOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say how many decoders and extractors a job needs, how much data it moves, and which part is the bottleneck.

    The job runs in this process for some seconds, in a temporary folder, to measure the cost of a clip in each part.
    Then clips are sent through the pools of a simulated machine or cluster. Nothing of the run is kept.
    """
    spec = load_job(job, None, sets, name)
    if not spec.trainers:
        raise ConfigError("essp plan: takes a job with trainers", code="unsupported")
    set_up_logging(Settings(log_level="ERROR"))
    servers = Servers(_bytes(redis, "--redis"), redis_servers, _bytes(network, "--network"))
    wanted = Wanted(rate, cores or cpu_count(), gpus, servers, core_price, gpu_price)
    check_devices(spec)
    found = plan(spec, _measured(spec, seconds), wanted)
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

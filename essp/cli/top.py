"""`essp top`: what each pool of a running master does and uses: cores, memory, disk, GPUs, over REST."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from essp.cli.console import open_console
from essp.cli.rest import SERVER, AsJson, Server, Token, ask, connect
from essp_common.errors import Unavailable
from essp_common.job.usage import PoolUsage, ProcessUsage, Usage
from essp_common.quantities import percent, size

_LOOK_S = 2.0
_NONE = "–"
Columns = dict[str, Sequence[str]]
"""Head -> the cells below it."""


def main(
    processes: Annotated[
        bool, typer.Option("--processes", help="A row for each process of workers, instead of each pool.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")] = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show what each pool does and uses: workers, how busy they are, clips per second, cores, memory, disk, GPUs."""
    draw = process_table if processes else pool_table
    with connect(server, token) as client:
        if as_json:
            for usage in _usages(client, watch):
                typer.echo(usage.model_dump_json() if watch else json.dumps(usage.model_dump(mode="json"), indent=2))
            return
        console = open_console()
        if watch and console.is_terminal and not console.is_dumb_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for usage in _usages(client, watch):
                    live.update(draw(usage), refresh=True)
            return
        for usage in _usages(client, watch):
            _print(draw(usage), usage, console)


def _usages(client: httpx.Client, watch: bool) -> Iterator[Usage]:
    """The usage now, and with `watch` again and again. A master that does not answer is asked again until it does."""
    yield Usage.model_validate(ask(client, "GET", "/v1/usage"))
    while watch:
        time.sleep(_LOOK_S)
        try:
            yield Usage.model_validate(ask(client, "GET", "/v1/usage"))
        except Unavailable:
            continue


def _print(table: Table, usage: Usage, console: Console) -> None:
    if usage.pools:
        console.print(table)
    else:
        typer.echo("no pools: no worker has reported yet", err=True)


def pool_table(usage: Usage) -> Table:
    """A row for each pool, without the columns that would be empty."""

    def of(cell: Callable[[PoolUsage], str]) -> list[str]:
        return [cell(pool) for pool in usage.pools]

    return _table(
        {
            "POOL": of(lambda pool: pool.pool),
            "UP": of(lambda pool: str(pool.workers)),
            "BUSY": of(lambda pool: percent(pool.busy, 0)),
            "CLIPS/S": of(lambda pool: _NONE if pool.clips_per_s is None else f"{pool.clips_per_s:.1f}"),
            "QUEUED": of(lambda pool: _NONE if pool.queue is None else f"{pool.queue:,}"),
            "CORES": of(lambda pool: _cores(pool.cpu_cores, pool.cores)),
            "MEMORY": of(lambda pool: _bytes(pool.memory_bytes)),
            "DISK FREE": of(lambda pool: _bytes(pool.disk_free_bytes)),
            "GPUS": of(lambda pool: str(pool.gpus) if pool.gpus else _NONE),
            "GPU BUSY": of(lambda pool: percent(pool.gpu_busy, 0)),
            "GPU MEMORY": of(lambda pool: _bytes(pool.gpu_memory_bytes)),
            "WATTS": of(lambda pool: _NONE if pool.gpu_watts is None else f"{pool.gpu_watts:.0f}"),
        }
    )


def process_table(usage: Usage) -> Table:
    """A row for each process."""

    def of(cell: Callable[[ProcessUsage], str]) -> list[str]:
        return [cell(each) for each in usage.processes]

    return _table(
        {
            "HOST": of(lambda each: each.host),
            "PROCESS": of(lambda each: str(each.process)),
            "CORES": of(lambda each: _cores(each.cpu_cores, each.cores)),
            "MEMORY": of(lambda each: f"{_bytes(each.memory_bytes)} of {_bytes(each.memory_limit_bytes)}"),
            "DISK FREE": of(lambda each: _bytes(each.disk_free_bytes if each.disk_bytes else None)),
            "GPUS": of(lambda each: ", ".join(f"{gpu.name} {percent(gpu.busy, 0)}" for gpu in each.gpus) or _NONE),
            "POOLS": of(lambda each: ", ".join(each.pools)),
        }
    )


def _table(columns: Columns) -> Table:
    shown = {head: cells for head, cells in columns.items() if any(cell != _NONE for cell in cells)}
    table = Table(box=None)
    for head in shown:
        words = head in ("POOL", "HOST", "POOLS")
        table.add_column(head, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*map(Text, cells))
    return table


def _cores(used: float | None, most: float | None) -> str:
    if most is None:
        return _NONE
    return f"{_NONE if used is None else f'{used:.1f}'} of {most:g}"


def _bytes(count: int | None) -> str:
    return _NONE if count is None else size(count)

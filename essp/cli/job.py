"""`essp job`: start, watch, change, pause, resume and stop jobs of a running master, over REST. `why`, `dump` and `rm`
also take the output of a job that ran without a master.

The master is at `--server` or ESSP_SERVER; its token is ESSP_API_TOKEN. Exit codes are the same as for `essp`, and also
5: the token is missing, wrong, or lacks the permission; 7: `wait` timed out.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table
from rich.text import Text

from essp.cli import completions
from essp.cli.confirmation import Yes, ask_for, confirm
from essp.cli.console import open_console, say
from essp.cli.dashboard import dashboard, duration, results
from essp.cli.job_file import Epochs, Fresh, JobFile, Named, Sets, YesFresh, load_job, options_named
from essp.cli.job_history import dump, why
from essp.cli.rest import (
    SERVER,
    TIMEOUT_S,
    AnswerLost,
    AsJson,
    Server,
    Token,
    ask,
    check,
    connect,
    not_a_master,
    pages,
    path_of,
    unreachable,
)
from essp.cli.view import open_view
from essp.embedded.removal import has_ended, removal_in, remove_output
from essp.job_file import placed_part, read_part
from essp.uris import as_uri, shown
from essp_common.artifacts.removal import OfAnotherJob, Removal
from essp_common.errors import ConfigError, NotFound, Unavailable
from essp_common.job.settings import changes_of, parse_settings
from essp_common.job.status import JobState, JobStatus, JobSummary
from essp_common.job.usage import Usage
from essp_common.quantities import counted, percent, size
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Start, watch, change, pause, resume and stop jobs over REST; show the outcome of one.",
)
app.command()(why)
app.command()(dump)

EXIT_FAILED, EXIT_TIMEOUT = 1, 7
_LOOK_S = 1.0
_PATIENCE_S = 600.0
"""How long to wait for a master that has answered before: it may be restarting or moving to another node."""
_STREAM = "text/event-stream"

Name = Annotated[str, typer.Argument(help="The job.", autocompletion=completions.jobs)]


@app.command()
def start(
    file: JobFile,
    fresh: Fresh = False,
    yes: YesFresh = False,
    sets: Sets = None,
    name: Named = None,
    epochs: Epochs = None,
    wait_for_it: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Start a job; one that has ended continues from its checkpoints."""
    spec = load_job(file, epochs, sets, name)
    with options_named(epochs, name=name), connect(server, token) as client:
        # The master fills in what the file leaves out, for example from the model of a prediction.
        body, params = spec.model_dump_json(exclude_unset=True), {"fresh": "true" if fresh else "false"}
        if fresh:
            params |= _agreed(client, body, params, yes)
        # The key lets a lost answer be requested again without starting the job twice.
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        answer = _retried(lambda: ask(client, "POST", "/v1/jobs", params=params, content=body, headers=headers))
        begun = JobStatus.model_validate(answer)
        if not wait_for_it:
            _print(begun, as_json)
            return
        if not begun.state.ended:
            typer.echo(f"job {begun.name} is {begun.state}; waiting until it has ended", err=True)
        _wait(client, spec.name, None, as_json, heard=True)


def _agreed(client: httpx.Client, body: str, params: dict[str, str], yes: bool) -> dict[str, str]:
    """Report what a start with these parameters removes, or ask if it is the output of another job. Returns the
    parameters to add."""
    agreed: dict[str, str] = {}
    try:
        found = ask(client, "POST", "/v1/jobs:validate", params=params, content=body)
    except OfAnotherJob as error:
        ask_for(error, yes)
        agreed = {"replaces": error.job}
        found = ask(client, "POST", "/v1/jobs:validate", params=params | agreed, content=body)
    if removes := found.get("removes"):
        what = f"{counted(removes['objects'], 'object')}, {size(removes['bytes'])}"
        kept = f"; {counted(len(removes['kept']), 'file')} of yours between them stay" if removes["kept"] else ""
        typer.echo(f"--fresh removes job {removes['job']} in its output: {what}{kept}", err=True)
    return agreed


@app.command("ls")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connect(server, token) as client:
        answer = list(pages(client, "/v1/jobs", "jobs", {"state": [s.value for s in state or []]}))
    if as_json:
        typer.echo(json.dumps(answer))
        return
    if not answer:
        typer.echo("there are no jobs; `essp job start job.yaml` starts one", err=True)
        return
    open_console().print(_listed([JobSummary.model_validate(job) for job in answer]))


@app.command()
def get(
    name: Name,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow the job, with what all workers use, until it has ended.")
    ] = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Show everything about a job."""
    with connect(server, token) as client:
        if not watch:
            _print(_get(client, name), as_json)
            return
        with open_view(as_json) as view:
            for status, usage in _watched(client, name):
                view.show(status, usage=usage)
            view.result(status)


@app.command()
def pause(name: Name, server: Server = SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """Issue no more clips until `resume`; clips already issued are finished."""
    _act("pause", name, server, token, as_json)


@app.command()
def resume(name: Name, server: Server = SERVER, token: Token = "", as_json: AsJson = False) -> None:
    """Continue a paused job as soon as there is room."""
    _act("resume", name, server, token, as_json)


@app.command()
def stop(
    name: Name,
    yes: Yes = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Stop a job; its trainers save first, so it continues from there when it is started again."""
    if not yes:
        confirm(f"Stop job {name}?")
    _act("stop", name, server, token, as_json)


@app.command("rm")
def remove(
    job: Annotated[
        str,
        typer.Argument(
            help="A job of the master; or the output of one that ran without a master, as runs/first, ./first or a "
            "URI.",
            autocompletion=completions.jobs,
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    yes: Yes = False,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Remove a job that has ended: what it has left in its output, and its place in the master's list.

    Files that ESSP did not write stay. A job from which another one takes weights, a model, videos or records is not
    removed. For the output of a job that ran without a master, that is known of the jobs whose outputs are next to it.
    """
    if "/" in job:
        found = _remove_output(as_uri(job), dry_run, yes)
    else:  # also if there is a folder of this name: what is removed must not depend on the working folder
        try:
            found = _remove_from_master(job, dry_run, yes, server, token)
        except (NotFound, Unavailable) as error:
            if os.path.isdir(job):
                raise type(error)(f"{error}; for the folder of this name, write ./{job}") from error
            raise
    typer.echo(json.dumps(found) if as_json else _removal(found, "would be removed" if dry_run else "removed"))


def _remove_from_master(name: str, dry_run: bool, yes: bool, server: str, token: str) -> dict[str, Any]:
    with connect(server, token) as client:
        path = path_of("jobs", name)
        found: dict[str, Any] = ask(client, "DELETE", path, params={"dry_run": "true"})
        if not dry_run:
            if not yes:
                typer.echo(_removal(found, "would be removed"), err=True)
                confirm(f"Remove job {name}?")
            found = ask(client, "DELETE", path)
    return found


def _remove_output(uri: str, dry_run: bool, yes: bool) -> dict[str, Any]:
    stores = Stores(Settings().stores)
    if dry_run or not yes:  # not otherwise: reading all jobs next to it may take long
        found = _document(removal_in(uri, stores))
    if dry_run:
        return found
    if not yes:
        typer.echo(_removal(found, "would be removed"), err=True)
        open_still = "" if has_ended(uri, stores) else " It has not ended: if a master runs it, stop it first."
        confirm(f"Remove job {found['job']}?{open_still}")
    return _document(remove_output(uri, stores, partial(typer.echo, err=True)))


def _document(removal: Removal) -> dict[str, Any]:
    """A removal, as REST says it."""
    return {
        "job": removal.job,
        "output": removal.uri,
        "objects": len(removal.keys),
        "bytes": removal.bytes,
        "kept": list(removal.kept),
    }


def _removal(found: dict[str, Any], done: str) -> str:
    """What a removal removes, in a sentence."""
    what = f"{counted(found['objects'], 'object')}, {size(found['bytes'])}" if found["objects"] else "nothing was left"
    kept = f"; {counted(len(found['kept']), 'file')} of yours stay" if found["kept"] else ""
    return f"job {found['job']} {done} from {shown(found['output'])}: {what}{kept}"


@app.command(context_settings={"ignore_unknown_options": True})  # -5 is an argument, not an option
def priority(
    name: Name,
    wanted: Annotated[
        int,
        typer.Argument(
            help="Priority, from -1000 to 1000; jobs with a higher priority start first.", min=-1000, max=1000
        ),
    ],
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Change a job's priority in the queue of its team, even while it runs."""
    with connect(server, token) as client:
        answer = _retried(lambda: ask(client, "PUT", path_of("jobs", name, "/priority"), json={"priority": wanted}))
    _print(JobStatus.model_validate(answer), as_json)


@app.command("set")
def change(
    name: Name,
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE",
            help='As in a job file, with dots; names with dots in them in double quotes: layers."layer1.0"=0.1',
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A part of a job file, whose fields are changed too.", exists=True, dir_okay=False),
    ] = None,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Change a running job: its learning rates and their schedules, its fusion strategies, its number of epochs, or its
    trainers.

    A new rate applies from the trainer's next update, and is kept when a stopped job resumes. To add epochs or
    trainers, the trainers save and the job restarts from there.
    """
    document = placed_part(_changes(fields or [], {} if file is None else read_part(file)), Path.cwd())
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    with connect(server, token) as client:
        answer = _retried(lambda: ask(client, "PATCH", path_of("jobs", name), json=document, headers=headers))
    _print(JobStatus.model_validate(answer), as_json)


@app.command()
def wait(
    name: Name,
    timeout: Annotated[float | None, typer.Option(help="Maximum time to wait, in seconds.", min=0)] = None,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Wait until a job has ended: exit code 0 if it completed, 1 if not, 7 on timeout."""
    with connect(server, token) as client:
        _wait(client, name, timeout, as_json)


@app.command()
def events(
    name: Name,
    after: Annotated[int, typer.Option(help="Only events after this id.", min=0)] = 0,
    server: Server = SERVER,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Follow the events of a job until it has ended."""
    with connect(server, token) as client:
        for event in _events(client, name, after):
            typer.echo(
                json.dumps(event) if as_json else f"{event['time'][:19]}  {event['kind']:<10} {event['message']}"
            )


def _listed(jobs: Sequence[JobSummary]) -> Table:
    """A row for each job; columns for team, priority and reason only if a job has one."""
    teams, reasons = any(job.team for job in jobs), any(job.why for job in jobs)
    priorities = any(job.priority for job in jobs)
    table = Table(box=None)
    for column in ("NAME", *(["TEAM"] if teams else []), "KIND", "STATE", "PROGRESS", "CLIPS/S", "ETA", "FAILED"):
        table.add_column(column)
    if priorities:
        table.add_column("PRIORITY")
    if reasons:
        table.add_column("WHY")
    for job in jobs:
        share = job.done / job.total if job.total else None
        state = f"{job.state} {job.queue.position}" if job.queue else str(job.state)
        cells = [job.name, *([job.team or "-"] if teams else []), job.kind, state, percent(share, 0)]
        cells += [f"{job.clips_per_s:.1f}", duration(job.eta_s) if job.eta_s is not None else "-", str(job.failed)]
        cells += [str(job.priority or 0)] if priorities else []
        cells += [job.why] if reasons else []
        table.add_row(*cells)
    return table


def _changes(fields: Sequence[str], document: dict[str, Any]) -> dict[str, Any]:
    """The changes of these fields, added to the part of a job file in `document`. Raises `ConfigError`."""
    if not fields and not document:
        raise ConfigError(
            "nothing to change: write FIELD=VALUE, as in trainers.rgb.optimizer.lr=0.001, or give --file",
            code="missing",
        )
    return changes_of(document, parse_settings(fields))


def _act(action: str, name: str, server: str, token: str, as_json: bool) -> None:
    with connect(server, token) as client:
        answer = _retried(lambda: ask(client, "POST", path_of("jobs", name, f":{action}")))  # safe to repeat
        _print(JobStatus.model_validate(answer), as_json)


def _wait(client: httpx.Client, name: str, timeout_s: float | None, as_json: bool, heard: bool = False) -> None:
    """Wait until a job has ended, and report how. `heard`: the master has answered just now.

    A master that has answered once may be restarting; one that never has may not exist at all.
    """
    began_s = time.monotonic()
    deadline = None if timeout_s is None else began_s + timeout_s
    heard_s = began_s if heard else None
    silent = False
    while True:
        status = None
        try:
            status = _get(client, name)
            heard_s, silent = time.monotonic(), False
        except Unavailable as error:
            if deadline is None and (heard_s is None or time.monotonic() - heard_s >= _PATIENCE_S):
                raise
            if not silent:
                say(f"essp: {error}; trying again")
            silent = True
        if status is not None and status.state.ended:
            break
        if deadline is not None and time.monotonic() >= deadline:
            say(f"essp: job {name} has not ended within {timeout_s:g} s; it continues")
            raise typer.Exit(EXIT_TIMEOUT)
        time.sleep(_LOOK_S if deadline is None else max(0.0, min(_LOOK_S, deadline - time.monotonic())))
    if as_json:
        typer.echo(status.model_dump_json())
    else:
        open_console().print(_course(status), results(status), sep="\n")
    if status.state is not JobState.COMPLETED:
        raise typer.Exit(EXIT_FAILED)


def _course(status: JobStatus) -> Text:
    """How far a job that has ended came, and how long it took."""
    progress = status.progress
    clips = f"{progress.done:,} of {progress.total:,} clips" if progress.total else "no clips"
    return Text(f"{status.name} {status.state}: {clips} in {duration(status.elapsed_s)}")


def _retried(ask: Callable[[], Any]) -> Any:
    """The result of `ask`, called a second time if the master does not answer.

    Once an answer was lost, it is called again and again: the master may still be at it, or may be restarting.
    """
    began_s, lost = time.monotonic(), False
    for times in count(1):
        try:
            return ask()
        except Unavailable as error:
            lost = lost or isinstance(error, AnswerLost)
            if (times > 1 and not lost) or time.monotonic() - began_s >= _PATIENCE_S:
                raise
            if times == 2:
                say(f"essp: {error}; trying again")
        time.sleep(_LOOK_S if times > 1 else 0.0)


def _get(client: httpx.Client, name: str) -> JobStatus:
    return JobStatus.model_validate(ask(client, "GET", path_of("jobs", name)))


def _watched(client: httpx.Client, name: str) -> Iterator[tuple[JobStatus, Usage]]:
    """The status of a job and what all workers use, every second, until the job has ended.

    A master that does not answer any more may be restarting, and is asked again. Raises `Unavailable` if it stays away.
    """

    def look() -> tuple[JobStatus, Usage]:
        return _get(client, name), Usage.model_validate(ask(client, "GET", "/v1/usage"))

    found, heard_s = look(), time.monotonic()
    while True:
        yield found
        if found[0].state.ended:
            return
        time.sleep(_LOOK_S)
        try:
            found, heard_s = look(), time.monotonic()
        except Unavailable:
            if time.monotonic() - heard_s >= _PATIENCE_S:
                raise


def _print(status: JobStatus, as_json: bool) -> None:
    if as_json:
        typer.echo(status.model_dump_json())
    else:
        console = open_console()
        console.print(dashboard(status, expand=console.is_terminal))


def _events(client: httpx.Client, name: str, after: int) -> Iterator[dict[str, Any]]:
    """The events of a job until it has ended.

    A master that does not answer any more may be restarting, and is asked for the rest. Raises `Unavailable` if it
    stays away.
    """
    heard_s: float | None = None
    while True:
        try:
            for kind, data in _stream(client, name, after):
                heard_s = time.monotonic()
                if kind != "status":
                    after = data["id"]
                    yield data
                elif JobState(data["state"]).ended and after >= data["last_event"]:
                    return
        except Unavailable:
            if heard_s is None or time.monotonic() - heard_s >= _PATIENCE_S:
                raise
        time.sleep(_LOOK_S)


def _stream(client: httpx.Client, name: str, after: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a job's stream of server-sent events has until it ends or breaks, which raises `Unavailable`."""
    path, timeout = path_of("jobs", name, "/events"), httpx.Timeout(TIMEOUT_S)
    try:
        with client.stream("GET", path, params={"after": after}, timeout=timeout) as response:
            if response.is_error:
                response.read()
            check(response)
            if not response.headers.get("content-type", "").startswith(_STREAM):
                raise not_a_master(response, "no events")
            yield from _server_sent(response.iter_lines())
    except httpx.TransportError as error:
        raise unreachable(client, error) from error


def _server_sent(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Event and data of each server-sent event; each of our events has a single line of data."""
    kind = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            kind = value
        elif field == "data":
            yield kind, json.loads(value)

"""`essp doctor`: checks that everything ESSP needs is available and configured correctly.

It prints one line per check: `ok`, `warn` (works, but will cause trouble) or `fail`, followed by the remedy. It checks
the servers of the settings (ESSP_BUS, ESSP_CACHE, ESSP_STORES) and the master at ESSP_SERVER, all at once, and reports
a missing one within seconds. It leaves nothing behind but a message of 16 bytes on `essp.doctor`.

Exit codes: 0 nothing failed, 1 something failed, 2 the settings are invalid. `helm test` and the demonstration of the
compose file run it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from threading import Thread
from typing import Annotated

import typer
from rich.text import Text

from essp.cli.console import broken, open_console, say
from essp.doctor import machine, master, stores
from essp.doctor.finding import Finding, Level, fail, ok, warn
from essp_common import distribution
from essp_common.errors import ConfigError, EsspError, Unavailable
from essp_common.runtime import variables
from essp_common.runtime.config import Settings
from essp_common.wiring import BUSES, CACHES, checked_scheme

EXIT_FAILED = 1
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
_WIDTH = 8

Examination = Callable[[], Iterable[Finding]]


def main(
    server: Annotated[
        str, typer.Option("--server", envvar="ESSP_SERVER", help="URL of the master (default: do not check it).")
    ] = "",
    token: Annotated[str, typer.Option("--token", envvar="ESSP_API_TOKEN", hidden=True, show_envvar=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the servers, the master and this machine, and say how to fix problems."""
    findings = examine(Settings(), server, token)
    worst = max((finding.level for finding in findings), key=list(Level).index)
    if as_json:
        lines = [{"check": f.check, "level": f.level, "what": f.what, "remedy": f.remedy} for f in findings]
        typer.echo(json.dumps({"essp": distribution.version(), "level": worst, "findings": lines}, indent=2))
    else:
        _print(findings)
    if worst is Level.FAIL:
        raise typer.Exit(EXIT_FAILED)


def _print(findings: Iterable[Finding]) -> None:
    console = open_console()
    for finding in findings:
        what = f"{finding.level:<4}  {finding.check:<{_WIDTH}} {finding.what}"
        line = Text(broken(what, console, indent=7 + _WIDTH))
        line.stylize(_COLOURS[finding.level], 0, 4)
        console.print(line, soft_wrap=True)
        if finding.remedy:
            say(" " * (9 + _WIDTH) + finding.remedy, console, indent=11 + _WIDTH)


def examine(settings: Settings, server: str = "", token: str = "") -> list[Finding]:
    """Run all checks at once. Findings come in a fixed order. Without `server`, the master is not checked."""
    examinations: list[tuple[str, Examination]] = [
        ("settings", _settings),
        ("machine", machine.examine),
        ("kafka", lambda: _bus(settings)),
        ("redis", lambda: _cache(settings)),
        ("s3", lambda: stores.examine(settings.stores)),
    ]
    if server:
        examinations.append(("master", lambda: master.examine(server, token)))
    found = _all_at_once(examinations)
    if not server and not settings.bus.startswith("memory:"):
        found.append(
            warn("master", "not checked: no URL of a master is set", "set ESSP_SERVER, as in http://127.0.0.1:8080")
        )
    return found


def _all_at_once(examinations: Sequence[tuple[str, Examination]]) -> list[Finding]:
    """Run all examinations at once and return the findings in order. Daemon threads: Ctrl-C does not wait for a server
    that does not answer."""
    found: list[list[Finding]] = [[] for _ in examinations]

    def examine(number: int) -> None:
        found[number] = _collected(*examinations[number])

    threads = [Thread(target=examine, args=(number,), name="essp-doctor", daemon=True) for number in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [finding for one in found for finding in one]


def failing(settings: Settings) -> tuple[str, ...]:
    """The problems of the bus and cache servers, each with its remedy. `memory://` has no server."""
    found = _collected("kafka", lambda: _bus(settings))
    if not settings.cache.startswith("memory:"):
        found += _collected("redis", lambda: _cache(settings))
    return _problems(found)


def unusable(settings: Settings) -> tuple[str, ...]:
    """The problems of cache and stores, each with its remedy."""
    examinations: list[tuple[str, Examination]] = [
        ("redis", lambda: _cache(settings)),
        ("s3", lambda: stores.examine(settings.stores)),
    ]
    return _problems(_all_at_once(examinations))


def _problems(found: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(f"{it.check}: {it.what}; {it.remedy}" for it in found if it.level is Level.FAIL)


def not_ready(failing: Iterable[str]) -> Unavailable:
    """The error for a job whose servers have problems."""
    return Unavailable("\n  ".join(("the servers of the settings are not ready:", *failing)))


def _collected(name: str, examination: Examination) -> list[Finding]:
    """The findings of one examination. An error ends it and becomes the last finding."""
    found: list[Finding] = []
    try:
        for finding in examination():
            found.append(finding)
    except ConfigError as error:
        found.append(fail(name, str(error), "change the setting that the message names"))
    except EsspError as error:
        found.append(fail(name, str(error), "check the server and its log"))
    except ModuleNotFoundError as error:
        found.append(fail(name, f"the package {error.name!r} is not installed", distribution.remedy(error)))
    except Exception as error:  # noqa: BLE001  one failed examination must not hide the results of the others
        what = f"the examination ended with {type(error).__name__}: {error}"
        found.append(fail(name, what, "repair what it names; if that is ESSP itself, report it"))
    return found


def _settings() -> Iterable[Finding]:
    remedy = "correct its name, or unset it"
    return [warn("settings", line, remedy) for line in variables.misspelt(os.environ)]


def _bus(settings: Settings) -> Iterable[Finding]:
    checked_scheme("ESSP_BUS: bus", BUSES, settings.bus)
    if settings.bus.startswith("memory:"):
        return [ok("kafka", "not used: one process, messages stay in memory")]
    kafka = import_module("essp.doctor.kafka")
    return kafka.examine(settings.bus, settings.bus_login, settings.tenant, settings.partitions)  # type: ignore[no-any-return]


def _cache(settings: Settings) -> Iterable[Finding]:
    checked_scheme("ESSP_CACHE: cache", CACHES, settings.cache)
    if settings.cache.startswith("memory:"):
        if settings.bus.startswith("memory:"):
            return [ok("redis", "not used: one process, frames stay in memory")]
        remedy = "set ESSP_CACHE to redis://host:6379/0, or on one machine to shm://NAME?bytes=4GiB"
        return [fail("redis", "ESSP_BUS names a broker, but only one process can read frames in memory://", remedy)]
    if settings.cache.startswith("shm:"):
        shm = import_module("essp.doctor.shm")
        return shm.examine(settings.cache)  # type: ignore[no-any-return]
    redis = import_module("essp.doctor.redis")
    return redis.examine(settings.cache, settings.tenant)  # type: ignore[no-any-return]

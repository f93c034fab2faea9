"""A finding of `essp doctor`, with its remedy, and the checks that several examinations share."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from essp_common.runtime.addresses import shown_address

CONNECT_S = 2.0
"""Timeout of a connection to a server, in seconds."""
SKEW_WARN_S, SKEW_FAIL_S = 2.0, 60.0
"""Clock differences in seconds. An S3 server reports only whole seconds, and refuses requests that are minutes off."""


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """What was checked: `kafka`, `redis`, `shm`, `s3`, `files`, `master`, `clock`, `machine`."""
    level: Level
    what: str
    remedy: str = ""


def ok(check: str, what: str) -> Finding:
    """A check that passed."""
    return Finding(check, Level.OK, what)


def warn(check: str, what: str, remedy: str) -> Finding:
    """Something that works, but will cause trouble."""
    return Finding(check, Level.WARN, what, remedy)


def fail(check: str, what: str, remedy: str) -> Finding:
    """Something that does not work."""
    return Finding(check, Level.FAIL, what, remedy)


def unreachable(check: str, address: str, default_port: int, setting: str) -> Finding | None:
    """A finding if no server listens at `host[:port]`, else None.

    Call it before client libraries, which retry for a long time.
    """
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname or "", parts.port or default_port
    except ValueError:
        return fail(
            check,
            f"{shown_address(address)} is not an address: its port is not a number from 1 to 65535",
            f"correct {setting}",
        )
    if not host:
        return fail(check, f"{shown_address(address)} names no host", f"write host:port in {setting}")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
        return None
    except socket.gaierror:
        what, remedy = f"the host {host} does not exist", f"check the name in {setting}, and DNS"
    except TimeoutError:
        what = f"{host}:{port} does not answer within {CONNECT_S:g} s"
        remedy = f"check {setting}, firewalls and network policies"
    except OSError as error:
        what = f"no server listens at {host}:{port} ({error.strerror or error})"
        remedy = f"start the server, or check {setting}"
    return fail(check, what, remedy)


def clock(server: str, theirs: float, asked: float) -> Finding:
    """A finding about the difference between a server's clock and ours. `theirs`: its answer; `asked`: our time of the
    request."""
    ours = (asked + time.time()) / 2
    skew = theirs - ours
    what = f"{server} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
    remedy = "synchronise both machines with one time server (chrony, systemd-timesyncd)"
    if abs(skew) > SKEW_FAIL_S:
        return fail("clock", what, remedy)
    return warn("clock", what, remedy) if abs(skew) > SKEW_WARN_S else ok("clock", what)

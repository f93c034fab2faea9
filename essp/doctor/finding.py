"""What a check of the doctor found, and how to mend it."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

CONNECT_S = 2.0
"""How long a server may take to be reached."""
SKEW_WARN_S, SKEW_FAIL_S = 2.0, 60.0
"""Differences of clocks: an S3 server tells whole seconds only, and refuses requests that are minutes off."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    """What was looked at: `kafka`, `redis`, `s3`, `files`, `master`, `clock`, `machine`."""
    level: Level
    what: str
    remedy: str = ""


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, what)


def warn(check: str, what: str, remedy: str) -> Finding:
    """It works, and will hurt."""
    return Finding(check, Level.WARN, what, remedy)


def fail(check: str, what: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(check, Level.FAIL, what, remedy)


def unreachable(check: str, address: str, default_port: int, setting: str) -> Finding | None:
    """None if something listens at `host[:port]`; asked first, as client libraries try again for long."""
    parts = urlsplit(f"//{address}")
    host, port = parts.hostname or "", parts.port or default_port
    try:
        socket.create_connection((host, port), CONNECT_S).close()
        return None
    except socket.gaierror:
        what, remedy = f"there is no host {host}", f"check the name in {setting}, and DNS"
    except TimeoutError:
        what = f"{host}:{port} does not answer within {CONNECT_S:g} s"
        remedy = f"check {setting}, firewalls and network policies"
    except OSError as error:
        what = f"nothing listens at {host}:{port} ({error.strerror or error})"
        remedy = f"start the server, or check {setting}"
    return fail(check, what, remedy)


def clock(server: str, theirs: float, asked: float) -> Finding:
    """How far a server's clock is from ours. `theirs`: its answer; `asked`: our time when it was asked."""
    ours = (asked + time.time()) / 2
    skew = theirs - ours
    what = f"{server} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
    remedy = "let both machines follow one time server (chrony, systemd-timesyncd)"
    if abs(skew) > SKEW_FAIL_S:
        return fail("clock", what, remedy)
    return warn("clock", what, remedy) if abs(skew) > SKEW_WARN_S else ok("clock", what)

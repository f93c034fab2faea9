"""Failpoints: named places at which a process can be made to fail, to prove that nothing is lost when it does.

    ESSP_FAILPOINT=decoder.stored:3:kill            on the third pass, the process kills itself
    ESSP_FAILPOINT=trainer.saved:1:raise,s3.put:2:hang

 Actions: `kill` (SIGKILL to itself), `segv` (a real segmentation fault), `raise` (`TransientError`, like a failing
server), `hang` (this thread never continues), `stop` (SIGSTOP to itself: a zombie, until it gets SIGCONT). `nth` counts
from 1, in each process. The failure is announced on stderr first, since a fault that did not happen proves nothing. If
the variable is not set, `failpoint` does nothing.

The environment is read here, and not in `config.py`, because child processes and libraries below the settings have
failpoints, too. Never set it outside of tests.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from essp_common.errors import ConfigError, TransientError

VARIABLE = "ESSP_FAILPOINT"


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(name: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _segv(name: str) -> None:
    ctypes.string_at(0)


def _raise(name: str) -> None:
    raise TransientError(f"failpoint {name}", 0.05)


def _hang(name: str) -> None:
    threading.Event().wait()


ACTIONS: dict[str, Callable[[str], None]] = {
    "kill": _kill,
    "segv": _segv,
    "raise": _raise,
    "hang": _hang,
    "stop": _stop,
}


class Failpoints:
    """The armed failpoints, and how often each was passed."""

    def __init__(self, armed: str) -> None:
        """`armed`: `name:nth:action`, several separated by commas. Raises `ConfigError`."""
        self._armed: dict[str, list[tuple[int, str]]] = {}
        self._passed: dict[str, int] = {}
        self._lock = threading.Lock()
        self.arm(armed)

    def arm(self, armed: str) -> None:
        """Arm further failpoints. For a process that was forked after its parent had imported this module."""
        for item in filter(None, armed.split(",")):
            name, _, rest = item.partition(":")
            nth, _, action = rest.partition(":")
            if not nth.isdigit() or int(nth) < 1 or action not in ACTIONS:
                raise ConfigError(f"{item!r} is not name:nth:action; actions: {', '.join(ACTIONS)}", field=VARIABLE)
            self._armed.setdefault(name, []).append((int(nth), action))

    def hit(self, name: str) -> None:
        """Pass the failpoint `name`: fail if it is armed for this pass."""
        if name not in self._armed:
            return
        with self._lock:
            passed = self._passed[name] = self._passed.get(name, 0) + 1
        for nth, action in self._armed[name]:
            if passed == nth:
                with suppress(OSError):  # a decoder's child may not be allowed to write
                    print(f"failpoint {name}: {action}", file=sys.stderr, flush=True)
                ACTIONS[action](name)


PROCESS = Failpoints(os.environ.get(VARIABLE, ""))
"""The failpoints of this process."""
failpoint: Callable[[str], None] = PROCESS.hit
"""Pass the failpoint with this name. Names are `service.what-has-just-happened`."""

"""Runs one command, and terminates it when the parent process ends.

Otherwise a killed test run or terminal would leave servers behind that occupy a port and memory. The parent holds the
write end of this process's standard input. When the parent ends, for any reason, the pipe closes, and the guard
terminates the command.

It is run by path (`python -I -S guard.py COMMAND...`), so it imports only the standard library. It exits with the
status of the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 1.0
"""Time between SIGTERM and SIGKILL. The servers save nothing, so nothing is lost."""
_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def _end_with_parent(child: int) -> None:
    while os.read(0, 1):  # not through `sys.stdin`: the interpreter could not exit while this thread holds its lock
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # only `main` waits for the child: a second waiter could miss the exit status
    time.sleep(GRACE_S)
    os.kill(child, signal.SIGKILL)


def _hear() -> None:
    """Unblock the signals in the child, which inherits the blocked mask."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes. Returns its exit status."""
    # Wait for the signals instead of handling them: a handler would not run if its signal arrived just before the main
    # thread starts to wait.
    signal.signal(signal.SIGCHLD, lambda *_: None)  # some systems discard it otherwise
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_hear)
    threading.Thread(target=_end_with_parent, args=(child.pid,), name="guard-watch", daemon=True).start()
    while (status := child.poll()) is None:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            child.terminate()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

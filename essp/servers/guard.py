"""Runs one command, and terminates it when the parent process ends.

Otherwise a killed test run or terminal would leave servers behind that hold a port and memory. The parent holds the
write end of this process's standard input. When the parent ends, for whatever reason, the pipe closes, and the guard
terminates the command.

It is run by path (`python -I -S guard.py COMMAND...`), so it imports the standard library only. It exits with the
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
    while os.read(0, 1):  # not through `sys.stdin`: the interpreter could not end while this thread holds its lock
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # `main` alone waits for the child: who asks beside another may learn nothing
    time.sleep(GRACE_S)
    os.kill(child, signal.SIGKILL)


def _hear() -> None:
    """In the child, which would inherit what is blocked here."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes. Returns its exit status."""
    # Awaited, not handled: a handler is not run when its signal arrives just as the main thread begins to wait.
    signal.signal(signal.SIGCHLD, lambda *_: None)  # some systems drop it otherwise
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_hear)
    threading.Thread(target=_end_with_parent, args=(child.pid,), name="guard-watch", daemon=True).start()
    while (status := child.poll()) is None:
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            child.terminate()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

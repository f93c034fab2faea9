"""Runs one command, and terminates it when the parent process ends.

Otherwise a killed test run or terminal would leave servers behind that hold a port and memory. The parent holds the
write end of this process's standard input. When the parent ends, for whatever reason, the pipe closes, and the guard
terminates the command.

It is run by path (`python -I -S guard.py COMMAND...`), so it imports the standard library only. It exits with the
status of the command.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

GRACE_S = 1.0
"""Time between SIGTERM and SIGKILL. The servers save nothing, so nothing is lost."""


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes. Returns its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch() -> None:
        sys.stdin.buffer.read()
        _end(child)

    # Not a handler: one is not run when its signal arrives just as the main thread begins to wait.
    awaited = (signal.SIGTERM, signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # some systems drop it otherwise
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    threading.Thread(target=watch, name="guard-watch", daemon=True).start()
    while (status := child.poll()) is None:
        if signal.sigwait(awaited) == signal.SIGTERM:
            child.terminate()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

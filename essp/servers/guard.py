"""Runs one command and ends it when whoever started the guard is gone.

A server that a killed test run or terminal leaves behind holds a port and memory until somebody finds it. The
starter keeps the write end of this process's standard input: when the starter ends, however it ends, the pipe
closes and the command is terminated. Run by path (`python -I -S guard.py COMMAND...`), hence the standard
library only. The exit status is the command's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

GRACE_S = 1.0
"""How long the command may take to end by itself; nothing is lost, as nothing is kept."""


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input does."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch() -> None:
        sys.stdin.buffer.read()
        _end(child)

    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=watch, name="guard-watch", daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

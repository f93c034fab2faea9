"""Ctrl-C as something that a command looks at, so that it ends in order wherever it was."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(message: str) -> Iterator[threading.Event]:
    """Within this block the first Ctrl-C (or SIGTERM) says `message` and sets the event; the second ends the process
    as ever. Only the main thread may enter it."""
    interrupted = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(*_: object) -> None:
        restore()
        interrupted.set()
        # Not typer.echo: it writes past the live view, which then erases the wrong lines.
        print(message, file=sys.stderr)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield interrupted
    finally:
        restore()

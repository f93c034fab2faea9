"""Ctrl-C as something that a command answers in order, wherever it was."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(message: str) -> Iterator[threading.Event]:
    """Within this block the first Ctrl-C (or SIGTERM) says `message` and sets the event; the second ends the process
    as ever. Only the main thread may enter it."""
    interrupted = threading.Event()
    with _first_signal(message, interrupted.set):
        yield interrupted


@contextmanager
def leaving_at_once(message: str) -> Iterator[None]:
    """Within this block, of which nothing is to be kept, the first Ctrl-C (or SIGTERM) says `message` and raises
    `KeyboardInterrupt`, also while libraries are loaded. Only the main thread may enter it."""

    def leave() -> None:
        raise KeyboardInterrupt

    with _first_signal(message, leave):
        yield


@contextmanager
def _first_signal(message: str, act: Callable[[], None]) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(*_: object) -> None:
        restore()
        # Not typer.echo: it writes past the live view, which then erases the wrong lines.
        print(message, file=sys.stderr)
        act()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()

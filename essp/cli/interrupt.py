"""Ctrl-C as an event that a command handles in an orderly way."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(message: str) -> Iterator[threading.Event]:
    """Within this block the first Ctrl-C (or SIGTERM) prints `message` and sets the event; the second ends the process
    as usual. Only the main thread may enter it."""
    interrupted = threading.Event()
    with _first_signal(message, interrupted.set):
        yield interrupted


@contextmanager
def leaving_at_once(message: str) -> Iterator[None]:
    """Within this block, whose work is not kept, the first Ctrl-C (or SIGTERM) prints `message` and raises
    `KeyboardInterrupt`, even while libraries are loading. Only the main thread may enter it."""

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

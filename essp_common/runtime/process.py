"""A process that runs services: signals, threads, logs, its name.

The `main.py` of every service ends in `serve(service, settings)`. The first SIGTERM or SIGINT drains the service, which
then returns from `run`; if it has not within `drain_s`, or at a second signal, the process leaves at once. Either is
safe: unfinished messages are delivered again to another worker.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from essp_common.errors import ConfigError
from essp_common.runtime import conditions, logs, tracing
from essp_common.runtime.config import Settings
from essp_common.runtime.metrics import MetricsServer
from essp_common.runtime.service import Service
from essp_common.runtime.threads import guarded, unexpected
from essp_common.runtime.troubles import Troubles

log = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130
EXIT_NOT_DRAINED = 1

_DRAINING = (signal.SIGTERM, signal.SIGINT)
_SAYING_S = 1.0
_ENOUGH = b"\0"
"""Not a signal number: it ends the listening thread."""


def serve(service: Service, settings: Settings, troubles: Callable[[], Troubles] = dict, **about: str) -> None:
    """Run one service as this process: logs, metrics endpoint, signals. Raises the error that stopped the service.

    `troubles`: returns what keeps its servers from working. `about`: fields of everything that it logs
    (`essp_common.runtime.logs.ABOUT`). Raises `ConfigError` for a bus that no other process can reach: the service
    would wait forever.
    """
    set_up_logging(settings, service.name, **about)
    if settings.bus.startswith("memory:"):
        raise ConfigError(
            f"{service.name}: ESSP_BUS is memory://, which no other process can reach; set ESSP_BUS, ESSP_CACHE and "
            "ESSP_STORES (`essp servers up` prints them), or use `essp run`, which needs no other process",
            field="ESSP_BUS",
            code="conflict",
        )
    if settings.supervised:
        guarded("essp-supervised", _wait_for_parent, _leave).start()
    draining = threading.Event()
    present = conditions.Conditions(conditions.of(service.name, troubles))
    metrics = (
        MetricsServer(
            settings.metrics_port, lambda: not draining.is_set(), hindered=lambda: conditions.summary(present.look())
        )
        if settings.metrics_port
        else None
    )
    try:
        with (
            logs.bridged(),
            drained_by_signals([service], settings.drain_s, draining),
            tracing.exported(settings.traces, settings.trace_share, service.name, worker_name(settings)),
        ):
            log.info("%s: started as %s", service.name, worker_name(settings))
            service.run()
            log.info("%s: ended", service.name)
    finally:
        if metrics is not None:
            metrics.close()


def _wait_for_parent() -> None:
    os.read(0, 1)  # not through `sys.stdin`: the interpreter could not end while this thread holds its lock
    _leave()


def _leave() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def drained_by_signals(
    services: Sequence[Service], drain_s: float, draining: threading.Event | None = None
) -> Iterator[None]:
    """Drain `services` at SIGTERM and SIGINT within this block. Only the main thread may enter it.

    A second signal, or `drain_s` seconds after the first, ends the process. The first one sets `draining`.
    """
    seen = draining or threading.Event()
    timer = threading.Timer(drain_s, _leave_undrained, [drain_s])
    timer.name, timer.daemon = "essp-drain-limit", True

    def drain() -> None:
        log.info("leaves within %g s, when its current work is done; a second signal ends it at once", drain_s)
        for service in services:
            try:
                service.drain()
            except Exception as error:  # noqa: BLE001  the others must still be drained
                unexpected("essp-drain", error)

    def on_signal() -> None:
        if seen.is_set():
            os._exit(EXIT_INTERRUPTED)
        seen.set()
        timer.start()
        guarded("essp-drain", drain).start()  # may take a while

    try:
        with _heard(on_signal):
            yield
    finally:
        timer.cancel()


@contextmanager
def _heard(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` at each SIGTERM and SIGINT within this block, in a separate thread.

    A Python signal handler runs only when the main thread next executes Python code; if the main thread starts to block
    at the moment the signal arrives, that is never. The interpreter's wakeup pipe is readable at once, whatever the
    main thread does.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def listen() -> None:
        while number := os.read(read_end, 1)[0]:
            if number in _DRAINING:
                try:
                    on_signal()
                except Exception as error:  # noqa: BLE001  the second signal must still be received
                    unexpected("essp-signals", error)

    listener = guarded("essp-signals", listen)
    listener.start()
    fd_before = signal.set_wakeup_fd(write_end)
    # Without a Python handler, the interpreter would write nothing to the pipe.
    handled_before = {number: signal.signal(number, lambda *_: None) for number in _DRAINING}

    def undo() -> None:
        for number, handler in handled_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(fd_before)

    _undone_in_forks.append(undo)
    try:
        yield
    finally:
        _undone_in_forks.remove(undo)
        undo()
        os.write(write_end, _ENOUGH)
        listener.join()
        os.close(write_end)
        os.close(read_end)


_undone_in_forks: list[Callable[[], None]] = []


def _forked() -> None:
    """A fork, such as a worker of a `multiprocessing` pool, dies from its signals and does not forward them to its
    parent."""
    while _undone_in_forks:
        _undone_in_forks.pop()()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks either
    os.register_at_fork(after_in_child=_forked)


def run_all(services: Sequence[Service]) -> None:
    """Run services in parallel, each in a thread named after it, until all have ended.

    If one raises or cannot be started, the others are drained, and the first error is raised again when all have ended.
    """
    errors: list[BaseException] = []
    lock = threading.Lock()

    def run(service: Service) -> None:
        try:
            service.run()
        except BaseException as error:  # noqa: BLE001  raised again below
            with lock:
                errors.append(error)
            for other in services:
                other.drain()

    threads = [threading.Thread(target=run, args=(s,), name=s.name, daemon=True) for s in services]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # the machine cannot start more threads
        errors.append(error)
        for service in services:
            service.drain()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


def worker_name(settings: Settings) -> str:
    """Return this process's name in messages: as configured, else host name, process id, and a random token.

    Containers that share their host's network also share its name, and each has a process 1.
    """
    pid = os.getpid()
    return settings.worker or f"{process_name(pid)}.{_token(pid)}"


def process_name(pid: int) -> str:
    """Return the first part of the name of a process on this host: everything before its last dot."""
    return f"{socket.gethostname()}-{pid}"


@cache
def _token(pid: int) -> str:
    """Return a token that is constant for the life of this process; its forks have other tokens."""
    return secrets.token_hex(2)


def set_up_logging(settings: Settings, pool: str = "", **about: str) -> None:
    """Configure logging as set; see `essp_common.runtime.logs.set_up`."""
    logs.set_up(settings.log_level, settings.log_format, worker_name(settings), pool, about)


def _leave_undrained(drain_s: float) -> None:
    saying = threading.Thread(target=_say_undrained, args=[drain_s], name="essp-undrained", daemon=True)
    saying.start()
    saying.join(_SAYING_S)  # writing may block forever if no one reads the output
    os._exit(EXIT_NOT_DRAINED)


def _say_undrained(drain_s: float) -> None:
    log.error("not drained within %g s; leaving; the current work is delivered again", drain_s)
    logging.shutdown()

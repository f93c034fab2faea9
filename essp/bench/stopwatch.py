"""Measures wall time, processor time, and the cores that other processes used in the meantime.

The processor time of other processes covers the whole machine. It is 0 if this process may use only some of the cores
or if there is no `/proc`, because it is then unknown which cores the others used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from essp.bench.machine import cores
from essp_common.runtime.cores import cpu_count


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The time that a section of code took."""

    seconds: float
    cpu_s: float
    """Processor time of all threads of this process."""
    others_s: float
    """Processor time of other processes."""


def stopwatch() -> Callable[[], Elapsed]:
    """Start measuring. The returned function gives the time elapsed so far."""
    begun_s, begun_cpu_s, begun_machine_s = time.perf_counter(), time.process_time(), _machine_s()

    def elapsed() -> Elapsed:
        seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
        others_s = max(0.0, _machine_s() - begun_machine_s - cpu_s)
        return Elapsed(seconds, cpu_s, others_s)

    return elapsed


def _machine_s() -> float:
    if cpu_count() != os.cpu_count():
        return 0.0
    try:
        return cores().busy_s
    except OSError:
        return 0.0

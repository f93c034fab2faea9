"""Processor time of the parts of an embedded job: threads of this process by their names, and its child processes.

    decoder                 decoders, with the processes that decode
    extractor.<feature>     extractors
    feed.<trainer>          taking clips out of the cache, and what the model sees of them
    trainer.<trainer>       training itself
    master                  everything else that a clip costs: seeds, accounts, messages

Time of threads that have ended is lost; those of a job live as long as it does.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts processor time in."""
_PROC = Path("/proc")
_DECODES = b"essp_engine.decoding.child"
_LANE = re.compile(r"-lane-\d+$")
_FEEDS = re.compile(r"^essp-(?:intake|load|release|device-feed)-(.+?)(?:_\d+)?$")
_ASIDE = frozenset((threading.main_thread().name, "aggregator"))
"""Whoever asks, and what happens once a job."""


def cpu_by_part() -> dict[str, float]:
    """Seconds of processor time so far, by part."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used: dict[str, float] = defaultdict(float)
    trainers = sorted(name for name in names.values() if name.startswith("trainer."))
    for task in (_PROC / "self" / "task").iterdir():
        name = names.get(int(task.name))
        parts = trainers if name is None else [part_of(name)]  # without a name: torch's threads, of all trainers
        for part in parts:
            with suppress(OSError):  # it has ended meanwhile
                used[part] += _seconds(task / "stat")[0] / len(parts)
    for process in _PROC.glob("[0-9]*"):
        with suppress(OSError):
            seconds, parent = _seconds(process / "stat")
            if parent == os.getpid() and _DECODES in (process / "cmdline").read_bytes():
                used["decoder"] += seconds
    for aside in _ASIDE:
        used.pop(aside, None)
    return used


def part_of(thread: str) -> str:
    """The part that a thread of this name belongs to."""
    if thread in _ASIDE:
        return thread
    if (feeds := _FEEDS.match(thread)) is not None:
        return f"feed.{feeds[1]}"
    name = _LANE.sub("", thread)
    return name if name == "decoder" or name.startswith(("extractor.", "trainer.")) else "master"


def _seconds(stat: Path) -> tuple[float, int]:
    """Processor time of a thread or process, and the process that started it."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S, int(fields[1])

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

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts processor time in."""
_DECODES = "essp_engine.decoding.child"
_LANE = re.compile(r"-lane-\d+$")
_FEEDS = re.compile(r"^essp-(?:fetch-trainer\.|(?:intake|release|device-feed)-)(.+?)(?:_\d+)?$")
_ASIDE = frozenset((threading.main_thread().name, "aggregator"))
"""Whoever asks, and what happens once a job."""


def cpu_by_part() -> dict[str, float]:
    """Seconds of processor time so far, by part."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used: dict[str, float] = defaultdict(float)
    trainers = sorted(name for name in names.values() if name.startswith("trainer."))
    process = psutil.Process()
    for thread in process.threads():
        name = names.get(thread.id)
        parts = trainers if name is None else [part_of(name)]  # without a name: torch's threads, of all trainers
        for part in parts:
            used[part] += (thread.user_time + thread.system_time) / len(parts)
    for child in process.children():
        with suppress(psutil.Error):  # it has ended meanwhile
            if _DECODES in child.cmdline():
                times = child.cpu_times()
                used["decoder"] += times.user + times.system
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

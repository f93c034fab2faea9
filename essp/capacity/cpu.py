"""Processor time of the parts of an embedded job: threads of this process by name, and its child processes.

    decoder                 decoders, with the processes that decode
    extractor.<feature>     extractors
    feed.<trainer>          taking clips out of the cache, and preparing them for the model
    trainer.<trainer>       the training itself
    master                  everything else that a clip costs: seeds, records, messages

The time of threads that have ended is lost. The threads of a job live as long as the job.
"""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from contextlib import suppress

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
"""The unit in which the kernel counts processor time."""
_DECODES = "essp_engine.decoding.child"
_LANE = re.compile(r"-lane-\d+$")
_FEEDS = re.compile(r"^essp-(?:fetch-trainer\.|(?:intake|release|device-feed)-)(.+?)(?:_\d+)?$")
_ASIDE = frozenset((threading.main_thread().name, "aggregator"))
"""The thread that measures, and work that happens once per job."""


def cpu_by_part() -> dict[str, float]:
    """Seconds of processor time so far, by part."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    used: dict[str, float] = defaultdict(float)
    trainers = sorted(name for name in names.values() if name.startswith("trainer."))
    process = psutil.Process()
    for thread in process.threads():
        name = names.get(thread.id)
        # nameless threads belong to torch, and are shared by all trainers
        parts = trainers if name is None else [part_of(name)]
        for part in parts:
            used[part] += (thread.user_time + thread.system_time) / len(parts)
    for child in process.children():
        with suppress(psutil.Error):  # the process may have ended in the meantime
            if _DECODES in child.cmdline():
                times = child.cpu_times()
                used["decoder"] += times.user + times.system
    for aside in _ASIDE:
        used.pop(aside, None)
    return used


def part_of(thread: str) -> str:
    """The part to which a thread of this name belongs."""
    if thread in _ASIDE:
        return thread
    if (feeds := _FEEDS.match(thread)) is not None:
        return f"feed.{feeds[1]}"
    name = _LANE.sub("", thread)
    return name if name == "decoder" or name.startswith(("extractor.", "trainer.")) else "master"

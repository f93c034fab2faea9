"""What may be wrong with a process's own servers: the kinds, and what a process currently observes.

Separate from `conditions.py`, so that components which only have troubles, such as adapters, load no more than they
need.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

LASTS_S = 15.0
"""A trouble that passes within this time is not a condition of a process: a rebalance, a failover, a retry."""


class Kind(StrEnum):
    """What may be wrong. `MEANINGS` has a sentence for each kind, with a remedy."""

    UNASSIGNED = "unassigned"
    NO_WORKERS = "no-workers"
    CRASHING = "crashing"
    HELD_UP = "held-up"
    PAUSED = "paused"
    BUS_SILENT = "bus-silent"
    BUS_STALLED = "bus-stalled"
    BUS_REFUSES = "bus-refuses"
    BUS_LOSES = "bus-loses"
    CACHE_SILENT = "cache-silent"
    CACHE_REFUSES = "cache-refuses"
    CACHE_EVICTS = "cache-evicts"
    CACHE_DAMAGED = "cache-damaged"
    MIXED_RELEASES = "mixed-releases"
    STORAGE_FULL = "storage-full"
    STORAGE_SILENT = "storage-silent"
    STATE_DAMAGED = "state-damaged"
    UNREPORTED = "unreported"
    UNSAVED = "unsaved"
    LOGS_LOST = "logs-lost"
    DEFECT = "defect"
    TRIAL_SERVERS = "trial-servers"


NOTICES = frozenset({Kind.TRIAL_SERVERS})
"""Kinds that stop nothing now: users should know of them."""

MEANINGS: Mapping[Kind, str] = {
    Kind.UNASSIGNED: "workers are up and work waits, but the broker has dealt them no partitions; look at the broker's "
    "log, and restart it or the workers",
    Kind.NO_WORKERS: "work waits for a pool that has no running worker; start one, or see why none starts",
    Kind.PAUSED: "someone has paused the pool; `essp pool resume` lets it work again",
    Kind.CRASHING: "workers end as soon as they are started; their logs say why",
    Kind.HELD_UP: "workers that work waits for are not created, not placed, or on a node that does not answer; the "
    "line says why",
    Kind.BUS_SILENT: "the broker does not answer; see that it runs and that the network lets it through",
    Kind.BUS_STALLED: "the broker takes messages and does not acknowledge them; check its log, its disk and its "
    "replicas",
    Kind.BUS_REFUSES: "the broker refuses what it is asked for; the line says why, and how to fix it",
    Kind.BUS_LOSES: "messages expired, or were deleted, before they were read; what they asked for is issued again; "
    "give their topic a longer retention",
    Kind.CACHE_SILENT: "the frame cache does not answer; see that it runs and that the network lets it through",
    Kind.CACHE_REFUSES: "the frame cache refuses what it is asked for; the line says why, and how to fix it",
    Kind.CACHE_EVICTS: "the frame cache may drop clips before they are read; set maxmemory, and maxmemory-policy "
    "noeviction",
    Kind.CACHE_DAMAGED: "the frame cache returns values that differ from what was stored; they are made again; check "
    "the machine's memory, the network and any proxy",
    Kind.MIXED_RELEASES: "workers of two releases of ESSP are at work; clips of the older ones are made again until "
    "those have left",
    Kind.STORAGE_FULL: "no room is left where results are written; free some, and what failed is tried again",
    Kind.STORAGE_SILENT: "where results are written does not answer; see that it runs and that the network lets it "
    "through",
    Kind.STATE_DAMAGED: "a document below ESSP_STATE cannot be read; restore it from a backup, or remove it",
    Kind.UNREPORTED: "a worker has dropped work that it could neither do nor report, and a job waits for it; its log "
    "says why; install it again, with one version of all packages",
    Kind.UNSAVED: "a trainer cannot save its checkpoint; make room or give it the right, and it tries again",
    Kind.LOGS_LOST: "log lines cannot be written; make room where the logs go",
    Kind.DEFECT: "a part of the master fails with an unexpected error, and is retried; everything else continues; "
    "the log of the master has the error: report it",
    Kind.TRIAL_SERVERS: "broker, Redis and object store are those that the chart brings for trying, one pod that loses "
    "what it has in memory; name your own servers before you rely on ESSP",
}
"""What each kind means and what to do, for users who know no more than that."""

Troubles = Mapping[Kind, str]
"""The present troubles of a process with its servers, each in words with a remedy."""

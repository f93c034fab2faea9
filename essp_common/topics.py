"""The message flow as one table: topic, message, key. `ACCESS` below says which services publish and read each.

    topic                  message       key          what it says
    essp.seeds             DecodeSeed    video uri    decode these clips of a video; of a build: read these files
    essp.clips             ClipReady     clip index   a clip is in the cache, or this index has no clip
    essp.features.<name>   FeatureReady  clip index   the same for a feature extracted from a clip
    essp.progress          Progress      job          what workers have done
    essp.control           Control       job          the master's commands; each instance reads all of them
    essp.shares            (none)        -            who owns partition n scores share n of every predict job
    essp.searches          TryCandidate  number       of a long search for the best fusion: try this candidate
    essp.deadletter        DeadLetter    video id     what could not be processed
    essp.doctor            (any bytes)   doctor       `essp doctor` was here

A tenant's topics and consumer groups begin with its name: `vision.essp.seeds` (`bus/tenant.py`).

The same video always goes to the same partition of `essp.seeds`, and so to a decoder that has it open. For a long
video, which many decoders read at once, this holds for each of its parts (`planning/work_units.py`). Clips and features
are on the partition `index % partitions`, from which each rank of a trainer reads a fixed share. Those of a predict job
are dealt in blocks of consecutive clips (`clip_partition`), each of which one predictor scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from essp_common.pb.v1.messages_pb2 import PREDICT, Purpose

SEEDS = "essp.seeds"
CLIPS = "essp.clips"
PROGRESS = "essp.progress"
CONTROL = "essp.control"
SHARES = "essp.shares"
"""Carries nothing: predictors share its partitions, and with them the clips of every predict job."""
DEADLETTER = "essp.deadletter"
DOCTOR = "essp.doctor"
"""The topic on which `essp doctor` tests a round trip; `essp setup` creates it."""

SEARCHES = "essp.searches"

FIXED = (SEEDS, CLIPS, PROGRESS, CONTROL, SHARES, SEARCHES, DEADLETTER)
"""The topics that always exist; feature topics are created when a job or an extractor uses them."""

KEPT = (CONTROL,)
"""Topics that a late reader reads from the beginning, so their messages must not expire."""

_FEATURES = "essp.features."

_WORKERS = frozenset({"decoder", "extractor", "trainer", "aggregator", "predictor", "loop"})
_CONSUMERS = frozenset({"trainer", "predictor", "loop", "people"})
SERVICES = frozenset({"master", "people"}) | _WORKERS
"""Who uses topics: the six services, the user's own loops (`loop`), `essp deadletter` and `essp doctor` (`people`)."""


@dataclass(frozen=True, slots=True)
class Access:
    """The services that publish to a topic, and the services that read it."""

    topic: str
    """Its name; a name that ends with a dot stands for every topic that begins with it."""
    publish: frozenset[str]
    read: frozenset[str]


ACCESS = (
    Access(SEEDS, frozenset({"master", "people"}), frozenset({"decoder", "people"})),
    # The master announces an index without a clip, so that no consumer waits for it.
    Access(CLIPS, frozenset({"decoder", "master", "people"}), _CONSUMERS | {"extractor"}),
    Access(_FEATURES, frozenset({"extractor", "master"}), _CONSUMERS),
    Access(PROGRESS, _WORKERS | {"master"}, frozenset({"master", "aggregator"})),
    Access(CONTROL, frozenset({"master"}), SERVICES),
    Access(SHARES, frozenset(), frozenset({"predictor"})),
    Access(SEARCHES, frozenset({"aggregator"}), frozenset({"aggregator"})),
    Access(DEADLETTER, frozenset({"decoder", "extractor", "people"}), frozenset({"people"})),
    Access(DOCTOR, frozenset({"people"}), frozenset({"people"})),
)

DATA_PARTITIONS = 64
"""Partitions of the data topics, unless ESSP_PARTITIONS says otherwise: the largest number of workers in a pool, and of
ranks of a trainer."""
MOST_PARTITIONS = 10_000

BLOCK_CLIPS = 32
"""Consecutive clips of a predict job that one predictor scores: enough for a batch of a GPU, and few enough that the
clips under way at one time are divided among many predictors."""
_GOLDEN = 0.6180339887498949


def features(feature: str) -> str:
    """The topic of a feature."""
    return f"{_FEATURES}{feature}"


def of_tenant(tenant: str, name: str) -> str:
    """The name of a topic or consumer group on the broker. No tenant's prefix is a prefix of another tenant's."""
    return f"{tenant}.{name}" if tenant else name


def partitions(topic: str, data: int = DATA_PARTITIONS) -> int:
    """The number of partitions with which a topic is created. `data`: the number for data topics (`Bus.partitions`)."""
    return 1 if topic in (PROGRESS, CONTROL, DEADLETTER, DOCTOR) else data


def clip_partition(purpose: Purpose, index: int, partitions: int) -> int:
    """The partition of the messages about a clip, of `partitions`.

    Neighbouring blocks of a predict job lie far apart, because the partitions of one predictor may be neighbours: those
    of any range of partitions then come at even intervals, and all predictors have work at the same time.
    """
    return index % partitions if purpose != PREDICT else spread(index // BLOCK_CLIPS, partitions)


def spread(number: int, partitions: int) -> int:
    """The partition for one of several numbered parts, so that neighbours lie far apart."""
    return number * _stride(partitions) % partitions


@cache
def _stride(partitions: int) -> int:
    """The number next to the golden section of `partitions` that has no factor in common with it."""
    return min(
        (n for n in range(1, partitions + 1) if gcd(n, partitions) == 1), key=lambda n: abs(n - _GOLDEN * partitions)
    )


def stream_topic(feature: str) -> str:
    """The topic that the consumers of a stream read: `rgb` is the clip itself, everything else is extracted."""
    return CLIPS if feature == "rgb" else features(feature)

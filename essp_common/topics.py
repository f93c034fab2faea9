"""The flow as one table: topic, message, key. `ACCESS` below says who publishes to each, and who reads it.

    topic                  message       key          what it says
    essp.seeds             DecodeSeed    video uri    decode these clips of a video
    essp.clips             ClipReady     clip index   a clip is in the cache, or there is none at this index
    essp.features.<name>   FeatureReady  clip index   the same of what was made of a clip
    essp.progress          Progress      job          what workers have done
    essp.control           Control       job          what the master wants; each instance reads all of it
    essp.deadletter        DeadLetter    video id     what could not be processed
    essp.doctor            (any bytes)   doctor       `essp doctor` was here

A tenant's topics and consumer groups begin with its name: `vision.essp.seeds` (`bus/tenant.py`).

The same video always goes to the same partition of `essp.seeds`, hence to a decoder that has it open; of a long video,
which many decoders read at once, the same part of it (`planning/work_units.py`). Clips
and features lie on the partition `index % partitions`, from which the ranks of a trainer take fixed shares.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = "essp.seeds"
CLIPS = "essp.clips"
PROGRESS = "essp.progress"
CONTROL = "essp.control"
DEADLETTER = "essp.deadletter"
DOCTOR = "essp.doctor"
"""On which `essp doctor` sees a message go there and back; `essp setup` creates it."""

FIXED = (SEEDS, CLIPS, PROGRESS, CONTROL, DEADLETTER)
"""The topics that always exist; those of features are created when a job or an extractor names them."""

KEPT = (CONTROL,)
"""Topics that a late reader reads from the beginning, so their messages must not expire."""

_FEATURES = "essp.features."

_WORKERS = frozenset({"decoder", "extractor", "trainer", "aggregator", "predictor", "loop"})
_CONSUMERS = frozenset({"trainer", "predictor", "loop", "people"})
SERVICES = frozenset({"master", "people"}) | _WORKERS
"""Who uses topics: the six services, loops of people's own (`loop`), `essp deadletter` and `essp doctor` (`people`)."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who publishes to a topic, and who reads it."""

    topic: str
    """Its name; one that ends with a dot stands for every topic that begins so."""
    publish: frozenset[str]
    read: frozenset[str]


ACCESS = (
    Access(SEEDS, frozenset({"master", "people"}), frozenset({"decoder", "people"})),
    # The master says of an index that there is nothing at it, so that no consumer waits for it.
    Access(CLIPS, frozenset({"decoder", "master", "people"}), _CONSUMERS | {"extractor"}),
    Access(_FEATURES, frozenset({"extractor", "master"}), _CONSUMERS),
    Access(PROGRESS, _WORKERS | {"master"}, frozenset({"master", "aggregator"})),
    Access(CONTROL, frozenset({"master"}), SERVICES),
    Access(DEADLETTER, frozenset({"decoder", "extractor", "people"}), frozenset({"people"})),
    Access(DOCTOR, frozenset({"people"}), frozenset({"people"})),
)

DATA_PARTITIONS = 64
"""Partitions of the data topics: the most workers one pool can have, and the most ranks of a trainer."""


def features(feature: str) -> str:
    """The topic of one kind of feature."""
    return f"{_FEATURES}{feature}"


def of_tenant(tenant: str, name: str) -> str:
    """A topic or consumer group as brokers have it. No tenant's names begin as another's do."""
    return f"{tenant}.{name}" if tenant else name


def partitions(topic: str) -> int:
    """How many partitions a topic is created with."""
    return 1 if topic in (PROGRESS, CONTROL, DEADLETTER, DOCTOR) else DATA_PARTITIONS


def stream_topic(feature: str) -> str:
    """Where the consumers of a stream find it: `rgb` is the clip itself, everything else is extracted."""
    return CLIPS if feature == "rgb" else features(feature)

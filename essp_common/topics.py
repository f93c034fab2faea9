"""The flow as one table: topic, message, key, who writes it, who reads it.

    topic                  message       key          written by            read by
    essp.seeds             DecodeSeed    video uri    master                decoders (one group)
    essp.clips             ClipReady     clip index   decoder, master (*)   extractor groups; trainers of `rgb`
    essp.features.<name>   FeatureReady  clip index   extractor, master (*) each trainer of that feature
    essp.progress          Progress      job          everyone              master
    essp.control           Control       job          master                everyone; each instance reads all of it
    essp.deadletter        DeadLetter    video id     workers               people
    essp.doctor            (any bytes)   doctor       `essp doctor`         the same

(*) only to say that there is nothing at an index (`skipped`), so that no consumer waits for it.

The same video always goes to the same partition of `essp.seeds`, hence to a decoder that has it open; of a long video,
which many decoders read at once, the same part of it (`planning/work_units.py`). Clips
and features lie on the partition `index % partitions`, from which the ranks of a trainer take fixed shares.
"""

from __future__ import annotations

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

DATA_PARTITIONS = 64
"""Partitions of the data topics: the most workers one pool can have, and the most ranks of a trainer."""


def features(feature: str) -> str:
    """The topic of one kind of feature."""
    return f"essp.features.{feature}"


def partitions(topic: str) -> int:
    """How many partitions a topic is created with."""
    return 1 if topic in (PROGRESS, CONTROL, DEADLETTER, DOCTOR) else DATA_PARTITIONS


def stream_topic(feature: str) -> str:
    """Where the consumers of a stream find it: `rgb` is the clip itself, everything else is extracted."""
    return CLIPS if feature == "rgb" else features(feature)

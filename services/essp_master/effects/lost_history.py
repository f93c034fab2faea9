"""The contents of a history segment in words, for users whose job's history lacks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from essp_common.artifacts.history import spans_of
from essp_common.job.status import phase_title, purpose_name
from essp_common.pb.v1.messages_pb2 import HistoryEntry, HistorySegment, PhaseEvents, Purpose, Runs
from essp_common.quantities import counted

_MOST_PARTS = 8
_FACTS = ("issued", "decoded", "extracted", "trained", "retrained", "trained_before", "skipped", "released")
"""Fields of `PhaseEvents`, in the order in which they happen."""


def contents(segment: HistorySegment, order: Sequence[tuple[Purpose, int]]) -> str:
    """Describe the clips by phase with what happened to them, and the segment's other contents. `order`:
    of the phases."""
    parts = [*_clips(segment, order), *(part for entry in segment.entries for part in _others(entry))]
    more = len(parts) - _MOST_PARTS
    if more > 0:
        parts[_MOST_PARTS:] = [f"{more} more"]
    return f"segment {segment.last} ({'; '.join(parts) or 'where the job stands'})"


def _clips(segment: HistorySegment, order: Sequence[tuple[Purpose, int]]) -> Iterator[str]:
    phases: dict[int, dict[str, list[tuple[int, int]]]] = {}
    for entry in segment.entries:
        for events in entry.phases:
            of_phase = phases.setdefault(events.phase_index, {})
            for fact in _FACTS:
                if spans := [span for runs in _runs(events, fact) for span in spans_of(runs)]:
                    of_phase.setdefault(fact, []).extend(spans)
    for phase_index, facts in sorted(phases.items()):
        purpose, epoch = order[phase_index]
        ends = [span for spans in facts.values() for span in spans]
        first, last = min(first for first, _ in ends), max(end for _, end in ends) - 1
        which = f"clip {first}" if first == last else f"clips between {first} and {last}"
        yield f"{phase_title(purpose_name(purpose), epoch)}: {which} {', '.join(facts)}"


def _runs(events: PhaseEvents, fact: str) -> Iterator[Runs]:
    found = getattr(events, fact)
    yield from (found,) if isinstance(found, Runs) else found.values()


def _others(entry: HistoryEntry) -> Iterator[str]:
    if entry.HasField("started"):
        yield "the start of the run"
    if entry.taken_over:
        yield "that another master took over"
    if entry.state:
        yield f"state {entry.state}"
    if entry.HasField("checkpoint"):
        yield f"checkpoint {entry.checkpoint.uri}"
    if entry.HasField("stopped"):
        yield f"trainer {entry.stopped.trainer} stopped early"
    if entry.HasField("changed") or entry.HasField("change_taken"):
        yield f"change {entry.changed.number or entry.change_taken.number}"
    if entry.failures:
        yield counted(len(entry.failures), "failed clip")

"""The states of a clip that is outstanding, and the events that take it from one to another.

    ISSUED                its seed is out, for the first time
    REISSUED              its seed is out again, so a report may be about an earlier seed
    QUEUED                it waits in line to be issued again
    PREEMPTED             its bytes were freed for a clip before it, and no consumer has asked for it yet
    REOPENED_QUEUED       the same three, for a clip that was closed, or is still owed to a straggler, and was opened
    REOPENED_REISSUED     again for a consumer that fell back: its phase counts it elsewhere, so its end is not counted
    REOPENED_PREEMPTED

The order of issue opens a clip as ISSUED, a consumer that fell back opens it as REOPENED_QUEUED. In any state a clip is
closed, and no longer outstanding, when its last consumer is done with it or gets it later from a catch-up queue.

    event      what happened
    request    its bytes were lost, its video was replaced, the job stalled, or a straggler shares it: make it again
    reissue    its turn in line came, and the budget had room
    preempt    a clip before it needed its bytes
    owe        a consumer that is still owed it gets it too: its end is counted now

    from                  event      to
    ISSUED                request    QUEUED
    ISSUED                preempt    PREEMPTED
    REISSUED              request    QUEUED
    REISSUED              preempt    PREEMPTED
    QUEUED                request    QUEUED
    QUEUED                reissue    REISSUED
    QUEUED                preempt    QUEUED
    PREEMPTED             request    QUEUED
    REOPENED_QUEUED       request    REOPENED_QUEUED
    REOPENED_QUEUED       reissue    REOPENED_REISSUED
    REOPENED_QUEUED       preempt    REOPENED_QUEUED
    REOPENED_QUEUED       owe        QUEUED
    REOPENED_REISSUED     request    REOPENED_QUEUED
    REOPENED_REISSUED     preempt    REOPENED_PREEMPTED
    REOPENED_REISSUED     owe        REISSUED
    REOPENED_PREEMPTED    request    REOPENED_QUEUED
    REOPENED_PREEMPTED    owe        PREEMPTED

A transition that the table does not have raises: it is a bug of the ledger. Which parts of a clip are in the cache, and
which consumers have yet to ack them, are separate sets of bits (`outstanding.Entry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from essp_common.pb.v1.messages_pb2 import OutstandingClip

State: TypeAlias = OutstandingClip.State

ISSUED = OutstandingClip.ISSUED
REISSUED = OutstandingClip.REISSUED
QUEUED = OutstandingClip.QUEUED
PREEMPTED = OutstandingClip.PREEMPTED
REOPENED_QUEUED = OutstandingClip.REOPENED_QUEUED
REOPENED_REISSUED = OutstandingClip.REOPENED_REISSUED
REOPENED_PREEMPTED = OutstandingClip.REOPENED_PREEMPTED

STATES = frozenset({ISSUED, REISSUED, QUEUED, PREEMPTED, REOPENED_QUEUED, REOPENED_REISSUED, REOPENED_PREEMPTED})
IN_LINE = frozenset({QUEUED, REOPENED_QUEUED})
OUT_OF_LINE = frozenset({PREEMPTED, REOPENED_PREEMPTED})
"""Preempted, and not in line to be rebuilt."""
WAITING = IN_LINE | OUT_OF_LINE
"""No seed is out, so a report is about an earlier one."""
REOPENED = frozenset({REOPENED_QUEUED, REOPENED_REISSUED, REOPENED_PREEMPTED})
"""The end of the clip is not counted."""


class Event(StrEnum):
    """What takes a clip from one state to another."""

    REQUEST = "request"
    REISSUE = "reissue"
    PREEMPT = "preempt"
    OWE = "owe"


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    (ISSUED, Event.REQUEST): QUEUED,
    (ISSUED, Event.PREEMPT): PREEMPTED,
    (REISSUED, Event.REQUEST): QUEUED,
    (REISSUED, Event.PREEMPT): PREEMPTED,
    (QUEUED, Event.REQUEST): QUEUED,
    (QUEUED, Event.REISSUE): REISSUED,
    (QUEUED, Event.PREEMPT): QUEUED,
    (PREEMPTED, Event.REQUEST): QUEUED,
    (REOPENED_QUEUED, Event.REQUEST): REOPENED_QUEUED,
    (REOPENED_QUEUED, Event.REISSUE): REOPENED_REISSUED,
    (REOPENED_QUEUED, Event.PREEMPT): REOPENED_QUEUED,
    (REOPENED_QUEUED, Event.OWE): QUEUED,
    (REOPENED_REISSUED, Event.REQUEST): REOPENED_QUEUED,
    (REOPENED_REISSUED, Event.PREEMPT): REOPENED_PREEMPTED,
    (REOPENED_REISSUED, Event.OWE): REISSUED,
    (REOPENED_PREEMPTED, Event.REQUEST): REOPENED_QUEUED,
    (REOPENED_PREEMPTED, Event.OWE): PREEMPTED,
}


def after(state: State, event: Event) -> State:
    """Return the state that follows. Raises `KeyError` for a transition that is not in the table."""
    return TRANSITIONS[state, event]

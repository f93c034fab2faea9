"""The states of a run of a job, and the events that take it from one to another.

    ACTIVE        it does what the job's state says
    ENDING        the job gets more epochs or trainers: nothing is issued, trainers save and leave
    CLOSED        they have left: no later message of this run counts
    RENEWING      the next run is being started, and writes the history from here on
    ENDED         the job has completed, failed or was stopped; what is left goes to the history
    HANDED_ON     the job has ended, and a later run in its output writes the history from here on
    UNRECORDED    a segment of its history could not be made or written; none follows, as there would be a gap
    FENCED        another master has taken the job, and writes its history

    event        what happened
    extend       the job gets more epochs or trainers, or more of these than it was to get
    close        the trainers that are up have saved and left
    hand_on      all that was noted is in the history; a later run may write it
    take_back    that run was not started
    lose         the history was refused, or cannot be made
    yield        another master has the higher fence
    end          the job completes, fails or is stopped; it also follows `lose` and `yield`, unless it has ended

    from          event        to
    ACTIVE        extend       ENDING
    ACTIVE        lose         UNRECORDED
    ACTIVE        yield        FENCED
    ACTIVE        end          ENDED
    ENDING        extend       ENDING
    ENDING        close        CLOSED
    ENDING        lose         UNRECORDED
    ENDING        yield        FENCED
    ENDING        end          ENDED
    CLOSED        extend       CLOSED
    CLOSED        close        CLOSED
    CLOSED        hand_on      RENEWING
    CLOSED        lose         UNRECORDED
    CLOSED        yield        FENCED
    CLOSED        end          ENDED
    RENEWING      extend       RENEWING
    RENEWING      close        RENEWING
    RENEWING      hand_on      RENEWING
    RENEWING      take_back    CLOSED
    RENEWING      end          ENDED
    ENDED         hand_on      HANDED_ON
    ENDED         take_back    ENDED
    ENDED         lose         UNRECORDED
    HANDED_ON     hand_on      HANDED_ON
    HANDED_ON     take_back    ENDED
    UNRECORDED    hand_on      UNRECORDED
    UNRECORDED    take_back    UNRECORDED
    UNRECORDED    lose         UNRECORDED
    UNRECORDED    end          UNRECORDED
    FENCED        hand_on      FENCED
    FENCED        take_back    FENCED
    FENCED        lose         FENCED
    FENCED        end          FENCED

A transition that the table does not have raises: it is a bug of the master. This is one run in one master; what users
see of the job, over all its runs, is its `JobState` (`life.py`), which the same request may change in any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class RunState(StrEnum):
    """The state of a run, which also says who writes its history."""

    ACTIVE = "active"
    ENDING = "ending"
    CLOSED = "closed"
    RENEWING = "renewing"
    ENDED = "ended"
    HANDED_ON = "handed_on"
    UNRECORDED = "unrecorded"
    FENCED = "fenced"

    @property
    def makes_way(self) -> bool:
        """Whether it ends so that the next run can begin; it issues nothing."""
        return self in (RunState.ENDING, RunState.CLOSED, RunState.RENEWING)

    @property
    def closed(self) -> bool:
        """Whether it has ended for the next run."""
        return self in (RunState.CLOSED, RunState.RENEWING)

    @property
    def writes_history(self) -> bool:
        """Whether this master writes the history of this run."""
        return self in (RunState.ACTIVE, RunState.ENDING, RunState.CLOSED, RunState.ENDED)


class RunEvent(StrEnum):
    """What takes a run from one state to another."""

    EXTEND = "extend"
    CLOSE = "close"
    HAND_ON = "hand_on"
    TAKE_BACK = "take_back"
    LOSE = "lose"
    YIELD = "yield"
    END = "end"


TRANSITIONS: Mapping[tuple[RunState, RunEvent], RunState] = {
    (RunState.ACTIVE, RunEvent.EXTEND): RunState.ENDING,
    (RunState.ACTIVE, RunEvent.LOSE): RunState.UNRECORDED,
    (RunState.ACTIVE, RunEvent.YIELD): RunState.FENCED,
    (RunState.ACTIVE, RunEvent.END): RunState.ENDED,
    (RunState.ENDING, RunEvent.EXTEND): RunState.ENDING,
    (RunState.ENDING, RunEvent.CLOSE): RunState.CLOSED,
    (RunState.ENDING, RunEvent.LOSE): RunState.UNRECORDED,
    (RunState.ENDING, RunEvent.YIELD): RunState.FENCED,
    (RunState.ENDING, RunEvent.END): RunState.ENDED,
    (RunState.CLOSED, RunEvent.EXTEND): RunState.CLOSED,
    (RunState.CLOSED, RunEvent.CLOSE): RunState.CLOSED,
    (RunState.CLOSED, RunEvent.HAND_ON): RunState.RENEWING,
    (RunState.CLOSED, RunEvent.LOSE): RunState.UNRECORDED,
    (RunState.CLOSED, RunEvent.YIELD): RunState.FENCED,
    (RunState.CLOSED, RunEvent.END): RunState.ENDED,
    (RunState.RENEWING, RunEvent.EXTEND): RunState.RENEWING,
    (RunState.RENEWING, RunEvent.CLOSE): RunState.RENEWING,
    (RunState.RENEWING, RunEvent.HAND_ON): RunState.RENEWING,
    (RunState.RENEWING, RunEvent.TAKE_BACK): RunState.CLOSED,
    (RunState.RENEWING, RunEvent.END): RunState.ENDED,
    (RunState.ENDED, RunEvent.HAND_ON): RunState.HANDED_ON,
    (RunState.ENDED, RunEvent.TAKE_BACK): RunState.ENDED,
    (RunState.ENDED, RunEvent.LOSE): RunState.UNRECORDED,
    (RunState.HANDED_ON, RunEvent.HAND_ON): RunState.HANDED_ON,
    (RunState.HANDED_ON, RunEvent.TAKE_BACK): RunState.ENDED,
    (RunState.UNRECORDED, RunEvent.HAND_ON): RunState.UNRECORDED,
    (RunState.UNRECORDED, RunEvent.TAKE_BACK): RunState.UNRECORDED,
    (RunState.UNRECORDED, RunEvent.LOSE): RunState.UNRECORDED,
    (RunState.UNRECORDED, RunEvent.END): RunState.UNRECORDED,
    (RunState.FENCED, RunEvent.HAND_ON): RunState.FENCED,
    (RunState.FENCED, RunEvent.TAKE_BACK): RunState.FENCED,
    (RunState.FENCED, RunEvent.LOSE): RunState.FENCED,
    (RunState.FENCED, RunEvent.END): RunState.FENCED,
}


def after(state: RunState, event: RunEvent) -> RunState:
    """Return the state that follows. Raises `KeyError` for a transition that is not in the table."""
    return TRANSITIONS[state, event]

"""The states of an outstanding clip: the documented table, the table in code and the ledger agree."""

from __future__ import annotations

import re

import pytest

from essp_common.pb.v1.messages_pb2 import OutstandingClip
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.clip_parts import CLIP, ClipParts
from essp_engine.seeding.instructions import Instruction
from essp_master.ledger import states
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.states import IN_LINE, OUT_OF_LINE, REOPENED, TRANSITIONS, WAITING, Event, State, after

NAME = OutstandingClip.State.Name
ROWS = [pytest.param(state, event, to, id=f"{NAME(state)}-{event}") for (state, event), to in TRANSITIONS.items()]
CLIPS = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(3)]
SIZE = 100


class Clip:
    """One clip, the second of its phase, with a budget of no more than that."""

    def __init__(self) -> None:
        self.parts = ClipParts({"rgb": "rgb"}, {"trainer.rgb": "rgb"})
        self.outstanding = Outstanding(self.parts, [[SIZE]], SIZE)
        self.out: list[Instruction] = []

    def bring_to(self, state: State) -> Entry:
        """Take the clip from its issue, or from being opened again, to a state."""
        if state not in REOPENED:
            self.outstanding.issue(0, CLIPS[1:2], self.parts.everyone)
            (entry,) = self.outstanding.entries()
        else:
            entry = self.outstanding.reopen(0, CLIPS[1])
            self.happen(entry, Event.REQUEST)
        paths = {
            "ISSUED": [],
            "QUEUED": [Event.REQUEST],
            "REISSUED": [Event.REQUEST, Event.REISSUE],
            "PREEMPTED": [Event.REQUEST, Event.REISSUE, Event.PREEMPT],
        }
        for event in paths[NAME(state).removeprefix("REOPENED_")]:
            self.happen(entry, event)
        assert entry.state == state
        return entry

    def happen(self, entry: Entry, event: Event) -> None:
        """Have the ledger's own means bring an event about."""
        match event:
            case Event.REQUEST:
                self.outstanding.request(entry, self.parts.everyone)
            case Event.REISSUE:
                assert self.outstanding.reissue(self.out)
            case Event.OWE:
                self.outstanding.owe(entry)
            case Event.PREEMPT:
                if entry.state in IN_LINE and not any(entry.sizes):
                    assert self.outstanding.reissue(self.out)
                    self.outstanding.request(entry, self.parts.everyone)
                if entry.state not in IN_LINE:
                    self.outstanding.made(entry, CLIP, SIZE)
                lower = self.outstanding.reopen(0, CLIPS[0])
                self.outstanding.request(lower, self.parts.everyone)
                assert self.outstanding.reissue(self.out)
                self.outstanding.close(lower)


@pytest.mark.parametrize(("state", "event", "to"), ROWS)
def test_a_clip_goes_where_the_table_says(state: State, event: Event, to: State) -> None:
    clip = Clip()
    entry = clip.bring_to(state)
    clip.happen(entry, event)
    assert entry.state == to
    assert clip.outstanding.settled == (to not in WAITING), "nothing new is issued while a clip waits"
    clip.outstanding.close(entry)
    assert not clip.outstanding.reissue(clip.out)
    assert clip.outstanding.settled
    assert clip.outstanding.credits.outstanding_bytes == 0


def test_the_documented_table_is_the_one_in_code() -> None:
    rows = re.findall(r"^    ([A-Z_]+) +([a-z]+) +([A-Z_]+)$", states.__doc__ or "", re.MULTILINE)
    assert rows == [(NAME(state), str(event), NAME(to)) for (state, event), to in TRANSITIONS.items()]


def test_every_state_is_in_the_table_and_can_be_left() -> None:
    all_but_unspecified = set(OutstandingClip.State.values()) - {OutstandingClip.STATE_UNSPECIFIED}
    assert {state for state, _ in TRANSITIONS} == all_but_unspecified
    assert set(TRANSITIONS.values()) | {states.ISSUED} == all_but_unspecified


def test_a_clip_is_in_line_or_out_of_line_or_its_seed_is_out() -> None:
    assert not IN_LINE & OUT_OF_LINE
    assert {NAME(state).removeprefix("REOPENED_") for state in WAITING} == {"QUEUED", "PREEMPTED"}
    assert {state for state in OutstandingClip.State.values() if NAME(state).startswith("REOPENED_")} == REOPENED


def test_a_transition_that_the_table_does_not_have_raises() -> None:
    with pytest.raises(KeyError):
        after(states.ISSUED, Event.REISSUE)

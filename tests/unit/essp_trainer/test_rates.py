"""The rate of a training through changes that come, deaths and returns, in any order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from essp_common.artifacts.manifest import TakenChange
from essp_common.job.changes import Place
from essp_common.job.feature_layout import COLOURS
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, Change
from essp_trainer.assignment import Assignment
from essp_trainer.model.rates import Rates
from tests.harness.training_jobs import CLASSES, job_spec, phase_plans

BATCH, CLIPS, EPOCHS = 4, 10, 3
LRS = [0.5, 0.25, 0.125, 0.0625]
"""That of the job, and of each change."""


def assignment() -> Assignment:
    spec = job_spec(Path("/nowhere"), epochs=EPOCHS, batch_size=BATCH, optimizer={"lr": LRS[0]})
    training = spec.trainers["one"]
    return Assignment(
        "tiny", "one", spec, training, spec.streams["s"], COLOURS, CLASSES, phase_plans(EPOCHS, CLIPS), {}, 1
    )


ASSIGNMENT = assignment()
PLACES = [Place(epoch, clip) for epoch in range(EPOCHS) for clip in range(0, CLIPS, BATCH)]
"""Of all updates, in order."""


def position_of(update: int) -> Position:
    """Of the training before this update."""
    return ASSIGNMENT.end if update == len(PLACES) else Position(2 * PLACES[update].epoch, PLACES[update].clip)


@dataclass
class Saved:
    """A checkpoint: the rates that its weights were trained at stand for them."""

    weights: list[float] = field(default_factory=list)
    taken: tuple[TakenChange, ...] = ()


class Simulation:
    """A trainer that dies and comes back, and a master from which it hears late."""

    def __init__(self) -> None:
        self.made: list[Change] = []
        """All changes, with the places that the master knows of."""
        self.unread: list[tuple[int, Place]] = []
        """What the trainer has said, and the master has not heard."""
        self.checkpoints = [Saved()]
        self.begin(0)

    def begin(self, back: int) -> None:
        """A process begins, from one of the newest checkpoints. It has heard nothing yet."""
        del self.checkpoints[max(1, len(self.checkpoints) - back) :]
        found = self.checkpoints[-1]
        self.weights = list(found.weights)
        self.rates = Rates(ASSIGNMENT)
        self.rates.restore(found.taken)

    def act(self, word: str) -> None:
        """Let something happen."""
        match word:
            case "change" if len(self.made) + 1 < len(LRS):
                number = len(self.made) + 1
                fields = {"trainers.one.optimizer.lr": json.dumps(LRS[number])}
                self.made.append(Change(number=number, fields=fields))
            case "hear":
                taken = self.rates.take(self.made, position_of(len(self.weights)))
                self.unread += [(change.number, change.place) for change in taken]
            case "read":
                for number, place in self.unread:
                    self.made[number - 1].places["one"].CopyFrom(place.message())
                self.unread.clear()
            case "train" if len(self.weights) < len(PLACES):
                place = PLACES[len(self.weights)]
                plan = next(plan for plan in ASSIGNMENT.phases if (plan.purpose, plan.epoch) == (TRAIN, place.epoch))
                self.weights.append(self.rates.at(plan, place.clip))
            case "save":
                self.checkpoints.append(Saved(list(self.weights), self.rates.taken))
            case "die" | "fall back":
                self.begin(word == "fall back")


def as_if_alone(taken: tuple[TakenChange, ...]) -> list[float]:
    """The rate of each update of a training that nothing interrupts, with these changes at these places."""
    found = []
    for place in PLACES:
        lr = LRS[0]
        for change in taken:
            if (change.epoch, change.clip) <= place:
                lr = change.fields["trainers.one.optimizer.lr"]
        found.append(lr)
    return found


WORDS = ["change", "hear", "read", "train", "train", "train", "save", "die", "fall back"]


@given(st.lists(st.sampled_from(WORDS), max_size=80))
@example(["change", "train", "hear", "read", "die", "change", "hear"])  # the second one never before the first
def test_whatever_happens_the_weights_are_those_of_a_training_that_got_the_changes_at_the_same_places(
    words: list[str],
) -> None:
    training = Simulation()
    for word in words:
        training.act(word)
        taken = training.rates.taken
        assert training.weights == as_if_alone(taken)[: len(training.weights)]
        assert [change.number for change in taken] == list(range(1, len(taken) + 1))
        assert [change.place for change in taken] == sorted(change.place for change in taken)
    training.act("hear")
    while len(training.weights) < len(PLACES):
        training.act("train")
    assert training.weights == as_if_alone(training.rates.taken)
    assert len(training.rates.taken) == len(training.made)


@given(st.lists(st.sampled_from(["change", "hear", "train", "train"]), max_size=40), st.integers(0, 8))
def test_where_the_master_knows_the_places_any_checkpoint_leads_to_the_same_weights(
    words: list[str], kept: int
) -> None:
    """Those of the training that went on, from each of its checkpoints, also from those before a change."""
    training = Simulation()
    for word in words:
        training.act(word)
        training.act("save")
    training.act("hear")
    training.act("read")
    while len(training.weights) < len(PLACES):
        training.act("train")
    expected, taken = training.weights, training.rates.taken
    training.begin(min(kept, len(training.checkpoints) - 1))
    training.act("hear")
    while len(training.weights) < len(PLACES):
        training.act("train")
    assert (training.weights, training.rates.taken) == (expected, taken)

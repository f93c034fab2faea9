"""Ranks are divided among the trainers of running jobs, and again after each of their epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from essp_common.errors import Unavailable
from essp_engine.registrations import TrainerRow
from essp_master.pools.port import TrainingKey
from essp_master.pools.trainer_ranks import _LEAVES_S, TrainerRanks
from essp_master.status.pool_demand import PoolDemand
from tests.harness.fleet import Clock
from tests.unit.essp_master.pools.reconciler_bench import IMAGE, Recorded, job, training


def with_losses(**losses: list[float]) -> PoolDemand:
    """A running job whose trainers have these validation losses."""
    return job(trainers=tuple(training(name, 0.0, of) for name, of in losses.items()))


def shares(driver: Recorded) -> dict[str, int]:
    """The newest number of ranks of each training."""
    return {trainer: ranks for kind, _, trainer, ranks, *_ in driver.told if kind == "train"}


def test_trainers_of_a_new_job_get_ranks_and_lose_them_with_it() -> None:
    driver = Recorded({})
    ranks = TrainerRanks(driver, 4)
    assert len(ranks.step([with_losses(rgb=[], flow=[])], {})) == 2
    assert sum(shares(driver).values()) == 4
    told = len(driver.told)
    assert ranks.step([with_losses(rgb=[], flow=[])], {}) == []
    assert len(driver.told) == told, "nothing has changed"
    driver.ended = {("demo", "rgb"), ("demo", "flow")}
    for _ in range(2):
        ranks.step([], {})
    assert shares(driver) == {"rgb": 0, "flow": 0}


@pytest.mark.parametrize("job_goes_on", [True, False])
@pytest.mark.parametrize("ends", ["by itself", "with an error", "never"])
def test_a_trainer_that_is_done_ends_by_itself_and_its_ranks_are_free_at_once(job_goes_on: bool, ends: str) -> None:
    """A driver that is told earlier takes it away with what it leaves, such as the log of its pod."""
    driver, clock, other = Recorded({}), Clock(), replace(with_losses(rgb=[]), job="other")
    ranks = TrainerRanks(driver, 2, clock)
    ranks.step([with_losses(flow=[])], {})
    done = job(trainers=(replace(training("flow", 0.0), final=True),))
    jobs = [done, other] if job_goes_on else [other]
    ranks.step(jobs, {})
    assert shares(driver) == {"flow": 2, "rgb": 2}
    clock.now_s += _LEAVES_S - 1
    ranks.step(jobs, {})
    assert shares(driver)["flow"] == 2, "it may be saving"
    clock.now_s += 2 if ends == "never" else 0
    (driver.failing if ends == "with an error" else driver.ended).update([("demo", "flow")] if ends != "never" else [])
    ranks.step(jobs, {})
    assert shares(driver) == {"flow": 0, "rgb": 2}
    told = len(driver.told)
    ranks.step(jobs, {})
    assert len(driver.told) == told


def test_a_trainer_that_is_wanted_again_while_it_ends_is_ended_first() -> None:
    driver = Recorded({})
    ranks, demand = TrainerRanks(driver, 2), with_losses(rgb=[])
    ranks.step([demand], {})
    ranks.step([], {})
    told = len(driver.told)
    ranks.step([replace(demand, created=demand.created + timedelta(seconds=5))], {})
    assert driver.told[told:] == [("train", "demo", "rgb", 0), ("train", "demo", "rgb", 2)]


def test_a_paused_job_gives_its_ranks_to_a_running_one_and_gets_some_back() -> None:
    driver = Recorded({})
    ranks = TrainerRanks(driver, 2)
    older = replace(with_losses(rgb=[]), job="older")
    newer = replace(with_losses(flow=[]), job="newer")
    ranks.step([replace(older, running=False)], {})
    assert shares(driver) == {"rgb": 2}, "nobody else wants them"
    ranks.step([replace(older, running=False), newer], {})
    assert shares(driver) == {"rgb": 0, "flow": 2}
    ranks.step([older, newer], {})
    assert shares(driver) == {"rgb": 1, "flow": 1}


def test_after_an_epoch_who_still_improves_gets_more() -> None:
    driver = Recorded({})
    ranks = TrainerRanks(driver, 6)
    clips = 100_000  # short epochs would be over before another rank is of use
    ranks.step([replace(with_losses(rgb=[], flow=[]), epoch_clips=clips)], {})
    later = with_losses(rgb=[2.4, 1.9, 1.5, 1.2], flow=[2.4, 0.52, 0.51, 0.51])
    ((_, sentence), *_) = ranks.step([replace(later, epoch_clips=clips)], {})
    assert shares(driver)["rgb"] > shares(driver)["flow"] >= 1
    assert "ranks of 6" in sentence
    kinds: list[Any] = [call for call in driver.told[2:] if call[0] == "train"]
    assert kinds[0][2] == "flow", "who gives comes before who takes"


def test_a_registered_image_takes_the_models_it_is_for() -> None:
    driver = Recorded({})
    row = TrainerRow(name="own", image=IMAGE, models=("small",), max_ranks=1)
    ranks = TrainerRanks(driver, 6)
    ranks.step([with_losses(rgb=[], flow=[])], {"own": row})
    assert shares(driver) == {"rgb": 1, "flow": 1}, "not more than its row allows"


def test_a_job_that_was_stopped_and_started_in_between_has_its_trainers_started_again() -> None:
    """Its trainers left when they heard of the stop, and nobody else saw it."""
    driver = Recorded({})
    ranks = TrainerRanks(driver, 4)
    first = with_losses(rgb=[], flow=[])
    ranks.step([first], {})
    before = shares(driver)
    told = len(driver.told)
    ranks.step([replace(first, created=first.created + timedelta(seconds=5))], {})
    again = [(trainer, ranks) for _, _, trainer, ranks, *_ in driver.told[told:]]
    assert sorted(again) == sorted([("rgb", 0), ("flow", 0), *before.items()])
    assert [ranks for _, ranks in again[:2]] == [0, 0], "the former ones first"


def test_a_training_that_has_ended_and_is_wanted_again_is_started_again() -> None:
    """Its job got more epochs at its end, so it is the same run to people, and nobody saw it without ranks."""
    driver = Recorded({})
    ranks = TrainerRanks(driver, 4)
    demand = with_losses(rgb=[1.0], flow=[1.0])
    ranks.step([demand], {})
    before, told = shares(driver), len(driver.told)
    driver.ended = {("demo", "rgb"), ("other", "rgb")}
    sentences = ranks.step([demand], {})
    assert driver.told[told:] == [("train", "demo", "rgb", 0), ("train", "demo", "rgb", before["rgb"])]
    assert sentences == [("trainer.demo.rgb", f"0 -> {before['rgb']} ranks of 4")]
    assert ranks.step([demand], {}) == []


def test_a_new_master_starts_again_what_had_ended_before_its_run() -> None:
    """The job was stopped and started again, and the master before ended before it looked."""
    driver = Recorded({})
    driver.present = {("demo", "rgb"): 4}
    driver.ended = {("demo", "rgb")}
    ranks = TrainerRanks(driver, 4)
    ranks.step([with_losses(rgb=[])], {})
    assert [(told[-1] > 0) for told in driver.told[-2:]] == [False, True]
    assert ranks.step([with_losses(rgb=[])], {}) == []


def test_a_training_that_has_failed_gives_its_ranks_to_others_and_stays_to_be_looked_at() -> None:
    driver = Recorded({})
    ranks = TrainerRanks(driver, 4)
    demand = with_losses(rgb=[], flow=[])
    ranks.step([demand], {})
    had = ranks.shares["demo", "rgb"]
    driver.failing = {("demo", "rgb")}
    sentences = ranks.step([demand], {})
    assert ("trainer.demo.rgb", f"has failed; its {had} ranks are free for others") in sentences
    assert ranks.shares == {("demo", "flow"): 4}
    assert shares(driver)["rgb"] == had, "its Job stays as it is"
    assert ranks.step([demand], {}) == []
    driver.failing = set()  # somebody has mended it
    ranks.step([demand], {})
    assert ranks.shares.keys() == {("demo", "rgb"), ("demo", "flow")}
    assert sum(ranks.shares.values()) == 4


def test_a_training_that_has_failed_goes_with_its_run() -> None:
    driver = Recorded({})
    ranks = TrainerRanks(driver, 4)
    demand = with_losses(rgb=[])
    ranks.step([demand], {})
    driver.failing = {("demo", "rgb")}
    ranks.step([demand], {})
    told = len(driver.told)
    ranks.step([replace(demand, created=demand.created + timedelta(seconds=5))], {})
    assert driver.told[told:] == [("train", "demo", "rgb", 0)], "the former one has to go before there is another"
    driver.failing = set()
    ranks.step([replace(demand, created=demand.created + timedelta(seconds=5))], {})
    assert shares(driver)["rgb"] >= 1
    driver.failing = {("demo", "rgb")}
    ranks.step([replace(demand, created=demand.created + timedelta(seconds=5))], {})
    ranks.step([], {})
    assert shares(driver) == {"rgb": 0}, "its job is over"


def test_a_new_master_leaves_a_training_that_has_failed_alone() -> None:
    driver = Recorded({})
    driver.present = {("demo", "rgb"): 3, ("demo", "flow"): 1}
    driver.failing = {("demo", "rgb")}
    ranks = TrainerRanks(driver, 4)
    ranks.step([with_losses(rgb=[], flow=[])], {})
    assert "rgb" not in shares(driver)
    assert ranks.shares.keys() == {("demo", "flow")}


def test_what_could_not_be_done_is_tried_again() -> None:
    """In a cluster a training's successor cannot be made before its predecessor is gone."""

    class Late(Recorded):
        def train(self, job: str, trainer: str, ranks: int, row: TrainerRow | None) -> None:
            super().train(job, trainer, ranks, row)
            if len(self.told) == 1:
                raise Unavailable("it is still there")

    driver = Late({})
    ranks = TrainerRanks(driver, 4)
    jobs = [with_losses(rgb=[], flow=[])]
    with pytest.raises(Unavailable):
        ranks.step(jobs, {})
    ranks.step(jobs, {})
    assert sum(shares(driver).values()) == 4
    assert ranks.step(jobs, {}) == []


def test_a_new_master_moves_no_ranks_and_ends_what_is_of_no_job() -> None:
    driver = Recorded({})
    driver.present = {("demo", "rgb"): 1, ("demo", "flow"): 3, ("gone", "rgb"): 4}
    ranks = TrainerRanks(driver, 4)
    demand = with_losses(rgb=[2.4, 1.9, 1.5, 1.2], flow=[2.4, 1.9, 1.5, 1.2])
    assert ranks.step([demand], {}) == [("trainer.gone.rgb", "is of no job any more; it ends")]
    driver.ended = {("gone", "rgb")}
    ranks.step([demand], {})
    assert sorted(driver.told) == [
        ("train", "demo", "flow", 3),
        ("train", "demo", "rgb", 1),
        ("train", "gone", "rgb", 0),
    ]


def test_what_there_is_is_looked_for_again_after_a_failure() -> None:
    class Away(Recorded):
        def trainings(self) -> Mapping[TrainingKey, int]:
            raise Unavailable("the API server is away")

    driver = Away({})
    ranks = TrainerRanks(driver, 4)
    with pytest.raises(Unavailable):
        ranks.step([with_losses(rgb=[])], {})
    assert driver.told == []

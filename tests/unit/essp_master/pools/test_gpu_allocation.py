"""GPUs go to the trainers that still improve; each keeps its minimum, and none moves without a clear gain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpus import RULES, fair_shares, simulate
from essp_master.pools.gpus import TrainerForecast, allocate

STEEP = TrainerForecast(name="steep", losses=[2.4, 1.9, 1.5, 1.2, 0.95], epochs_per_s=1 / 300)
FLAT = TrainerForecast(name="flat", losses=[2.4, 0.9, 0.52, 0.51, 0.505, 0.504], epochs_per_s=1 / 300)
NEW = TrainerForecast(name="new", losses=[2.4], epochs_per_s=1 / 300)


def test_the_one_that_still_improves_gets_most() -> None:
    shares = allocate([STEEP, FLAT], 8, {})
    assert shares["steep"] > shares["flat"] >= 1
    assert sum(shares.values()) == 8


def test_one_whose_loss_rises_keeps_its_least() -> None:
    rising = TrainerForecast(name="rising", losses=[1.0, 1.1, 1.2, 1.3], epochs_per_s=1 / 300)
    assert allocate([STEEP, rising], 8, {}) == {"steep": 7, "rising": 1}


def test_no_gpu_is_idle_while_a_trainer_could_use_it() -> None:
    rising = [TrainerForecast(name=name, losses=[1.0, 1.1, 1.2, 1.3], epochs_per_s=1 / 300) for name in ("a", "b")]
    assert allocate(rising[:1], 8, {"a": 1}) == {"a": 8}
    assert allocate(rising, 8, {"a": 1, "b": 1}) == {"a": 4, "b": 4}
    starved = TrainerForecast(name="b", losses=rising[1].losses, epochs_per_s=1 / 300, starved=True)
    assert allocate([rising[0], starved], 8, {"a": 1, "b": 2}) == {"a": 6, "b": 2}


def test_a_newcomer_is_not_starved() -> None:
    shares = allocate([FLAT, NEW], 8, {"flat": 8})
    assert shares["new"] > shares["flat"]


def test_one_that_waits_for_data_gets_no_more() -> None:
    starved = TrainerForecast(name="steep", losses=STEEP.losses, epochs_per_s=1 / 300, starved=True)
    assert allocate([starved, FLAT], 8, {"steep": 2, "flat": 1})["steep"] <= 2


def test_the_present_shares_stay_unless_others_are_clearly_better() -> None:
    twin = TrainerForecast(name="twin", losses=STEEP.losses, epochs_per_s=STEEP.epochs_per_s)
    assert allocate([STEEP, twin], 8, {"steep": 5, "twin": 3}) == {"steep": 5, "twin": 3}
    assert allocate([STEEP, twin], 8, {"steep": 1, "twin": 7}) == {"steep": 4, "twin": 4}


def test_who_comes_first_is_served_first_when_there_are_too_few() -> None:
    assert allocate([STEEP, FLAT, NEW], 2, {}) == {"steep": 1, "flat": 1, "new": 0}


TRAINERS = st.lists(
    st.builds(
        TrainerForecast,
        name=st.text("abcdefgh", min_size=1, max_size=4),
        losses=st.lists(st.floats(0.01, 100), max_size=12),
        epochs_per_s=st.floats(1e-5, 1),
        min=st.integers(1, 2),
        max=st.integers(2, 8),
        starved=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda trainer: trainer.name,
)


@given(TRAINERS, st.integers(0, 32), st.data())
def test_shares_never_exceed_what_there_is(trainers: list[TrainerForecast], gpus: int, data: st.DataObject) -> None:
    present = {t.name: data.draw(st.integers(0, 8)) for t in trainers}
    shares = allocate(trainers, gpus, present)
    assert set(shares) == {t.name for t in trainers}
    assert sum(shares.values()) <= gpus
    if sum(t.min for t in trainers) <= gpus:
        assert all(shares[t.name] >= t.min for t in trainers)
    changed = shares != present
    assert not changed or all(shares[t.name] <= t.max for t in trainers)


def test_trainers_are_nearly_done_sooner_than_with_fair_shares() -> None:
    ratios = [simulate(RULES["fair"], seed) / simulate(RULES["by_improvement"], seed) for seed in range(6)]
    assert sorted(ratios)[3] > 1.1


def test_fair_shares_leave_nothing_over() -> None:
    assert fair_shares([STEEP, FLAT, NEW], 8) == {"steep": 3, "flat": 3, "new": 2}

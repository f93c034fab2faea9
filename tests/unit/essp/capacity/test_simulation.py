"""Simulated clips against what queueing theory, or plain counting, says of the same setup."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essp.capacity import simulation
from essp.capacity.setups import Consumer, Pool, Setup
from essp.capacity.simulation import Outcome, enough_credits, simulate

CLIPS = 8000


def setup_of(decoders: int = 4, credits_: int = 400, cores: int = 0, seconds: float = 0.001) -> Setup:
    """Decoders of 20 ms a clip, a feature of 5 ms, and a trainer on each of both."""
    pools = (
        Pool("master", 0.0001, 1, None),
        Pool("decoder", 0.02, decoders, "master"),
        Pool("extractor.flow", 0.005, 4, "decoder"),
        Pool("feed.rgb", 0.0002, 1, "decoder"),
        Pool("feed.flow", 0.0002, 1, "extractor.flow"),
    )
    consumers = (Consumer("rgb", "feed.rgb", 8, seconds), Consumer("flow", "feed.flow", 16, seconds))
    return Setup(pools, consumers, credits_, cores)


@pytest.mark.parametrize("decoders", [1, 4, 12])
def test_the_slowest_pool_sets_the_rate(decoders: int) -> None:
    outcome = simulate(setup_of(decoders), CLIPS)
    assert outcome.clips_per_s == pytest.approx(decoders / 0.02, rel=0.05)
    assert outcome.busy["decoder"] == pytest.approx(1, abs=0.05)
    assert outcome.busy["extractor.flow"] == pytest.approx(0.005 * outcome.clips_per_s / 4, rel=0.05)


def test_trainers_set_it_if_they_are_the_slowest() -> None:
    outcome = simulate(setup_of(12, seconds=0.01), CLIPS)
    assert outcome.clips_per_s == pytest.approx(100, rel=0.05)
    assert outcome.busy["flow"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_cores_that_all_share_are_all_busy(cores: int) -> None:
    outcome = simulate(setup_of(4, cores=cores), CLIPS)
    whole = 0.0001 + 0.02 + 0.005 + 2 * 0.0002 + 2 * 0.001
    assert outcome.clips_per_s == pytest.approx(cores / whole, rel=0.05)
    assert outcome.cores_busy == pytest.approx(1, abs=0.02)


def test_few_credits_bound_what_is_under_way() -> None:
    """Little's law: the rate is at most clips outstanding over the time that each is, which is 27 ms at least."""
    outcome = simulate(setup_of(64, credits_=32), CLIPS)
    assert outcome.clips_per_s < 32 / 0.0253
    assert outcome.clips_per_s < 0.7 * simulate(setup_of(64), CLIPS).clips_per_s


def test_enough_credits_are_found() -> None:
    few = setup_of(16, credits_=32)
    rate = 0.9 * 16 / 0.02
    assert simulate(few).clips_per_s < rate
    assert simulate(replace(few, credits=enough_credits(few, rate))).clips_per_s >= rate
    assert enough_credits(few, 2 * 16 / 0.02) == 0


def test_what_no_number_of_clips_can_reach_is_told_without_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[Setup] = []

    def counted(setup: Setup, clips: int = 0, seed: int = 0) -> Outcome:
        simulated.append(setup)
        return simulate(setup, clips, seed)

    monkeypatch.setattr(simulation, "simulate", counted)
    few = setup_of(16, credits_=32)
    assert enough_credits(few, 1.01 * 16 / 0.02) == 0  # the decoders make 800 clips a second at most
    assert simulated == []
    assert enough_credits(few, 0.9 * 16 / 0.02) > 0
    assert simulated


def test_each_clip_passes_and_the_same_seed_gives_the_same() -> None:
    first, again, other = (simulate(setup_of(), CLIPS, seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    times, clips = zip(*first.passed, strict=True)
    assert list(times) == sorted(times)
    assert list(clips) == sorted(clips)
    assert clips[-1] == CLIPS

"""The limiting factor follows from rates, raw reads and busy cores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from essp.bench.verdict import Binds, Case, Measured, fastest, judge

Triple = tuple[int, float, float]


def case(pipeline: Sequence[Triple], raw: Sequence[Triple], **more: bool) -> Case:
    return Case("hdd, full", "image", [Measured(*one) for one in pipeline], [Measured(*one) for one in raw], 4, **more)


LATENCY = [(1, 110.0, 0.05), (2, 215.0, 0.1), (4, 420.0, 0.2)]
BANDWIDTH = [(1, 400.0, 0.1), (2, 420.0, 0.1), (4, 425.0, 0.1)]
MEMORY = [(1, 9000.0, 1.0), (4, 9500.0, 1.3)]

BUSY = case([(1, 100, 1.0), (2, 190, 2.0), (4, 370, 3.9)], MEMORY)
SLOW_DEVICE = case([(1, 100, 0.2), (2, 200, 0.4), (4, 400, 0.8)], LATENCY)
NARROW_DEVICE = case([(1, 300, 0.9), (2, 410, 1.2), (4, 412, 1.2)], BANDWIDTH)
ONE_THREAD = case([(1, 100, 0.97)], MEMORY)
LOCKED = case([(1, 6000, 0.97), (2, 6100, 1.0), (4, 6000, 1.05)], MEMORY, decodes=False)
BY_TURNS = case([(1, 60, 0.4), (2, 120, 0.8)], LATENCY)
STUCK = case([(1, 100, 0.3), (2, 101, 0.3)], LATENCY)
MEMORY_READS = case([(1, 2500, 1.0), (4, 9000, 3.9)], [(1, 2600, 1.0), (4, 9500, 3.9)], decodes=False)


@pytest.mark.parametrize(
    ("given", "binds", "said"),
    [
        (
            BUSY, Binds.CORES,
            "the cores are the limiting factor: "
            "3.9 of 4 cores are busy with it, and raw reads are 26x as fast. 370 images/s with 4 "
            "threads, 3.7x as many as with 1.",
        ),
        (
            SLOW_DEVICE, Binds.DEVICE,
            "the device is the limiting factor: "
            "this is 95 % of raw reads, which still gain 95 % from 2 to 4 threads: its latency is "
            "the limit, and more threads help. 400 images/s with 4 threads, 4x as many as with 1.",
        ),
        (
            NARROW_DEVICE, Binds.DEVICE,
            "the device is the limiting factor: "
            "this is 98 % of raw reads, which gain only 1 % from 2 to 4 threads: its bandwidth is "
            "the limit, and more threads do not help. 410 images/s with 2 threads, 1.37x as many as with 1.",
        ),
        (
            ONE_THREAD, Binds.DECODER,
            "the decoder is the limiting factor: "
            "1 thread computed all the time, raw reads are 95x as fast, and 4 cores are there: more "
            "threads help. 100 images/s with 1 thread.",
        ),
        (
            LOCKED, Binds.LOCK,
            "the interpreter's lock is the limiting factor: "
            "about one core is busy, more threads gain nothing, and raw reads are 1.58x "
            "as fast. 6,000 images/s with 1 thread, and more threads gain nothing.",
        ),
        (
            BY_TURNS, Binds.TURNS,
            "neither cores nor reads are the limiting factor: "
            "0.8 of 4 cores are busy, and raw reads are 3.5x as fast: threads read and "
            "compute by turns, so more of them help.",
        ),
        (
            STUCK, Binds.TURNS,
            "threads read and compute by turns. 100 images/s with 1 thread, and more threads gain nothing.",
        ),
        (MEMORY_READS, Binds.CORES, "the cores are the limiting factor: 3.9 of 4 cores"),
    ],
)  # fmt: skip
def test_the_limiting_factor_is_said_with_its_reason(given: Case, binds: Binds, said: str) -> None:
    verdict = judge(given)
    assert verdict.binds is binds
    assert said in verdict.sentence
    assert verdict.sentence.startswith("hdd, full: ")


@pytest.mark.parametrize(
    ("raw", "binds", "said", "unsaid"),
    [
        (
            [(1, 180.0, 0.2), (4, 342.0, 0.4)], Binds.UNKNOWN,
            "no limiting factor is known: this is 120 % of raw reads with 4 threads", "is the limiting factor",
        ),
        (
            [(1, 230.0, 0.2), (4, 437.0, 0.4)], Binds.DEVICE,
            "gain 90 % from 1 to 4 threads: more threads help", "do not help",
        ),
        (
            [(2, 430.0, 0.2), (4, 410.0, 0.4)], Binds.DEVICE,
            "lose 5 % from 2 to 4 threads: it can serve no more", "gain",
        ),
    ],
    ids=["faster than its bound", "a gain of less than a latency gives", "a loss"],
)  # fmt: skip
def test_no_verdict_contradicts_its_own_figures(raw: Sequence[Triple], binds: Binds, said: str, unsaid: str) -> None:
    verdict = judge(case([(4, 412.0, 0.8)], raw))
    assert verdict.binds is binds
    assert said in verdict.sentence
    assert unsaid not in verdict.sentence


def test_what_varies_with_few_threads_does_not_hide_what_limits_many() -> None:
    """Of slow reads, few are timed: with two threads, this was faster than its bound by chance."""
    verdict = judge(
        case([(2, 62, 0.03), (4, 118, 0.03), (8, 223, 0.05)], [(2, 57, 0.02), (4, 116, 0.02), (8, 229, 0.04)])
    )
    assert "gain 97 % from 4 to 8 threads: its latency is the limit, and more threads help" in verdict.sentence


def test_what_a_sentence_says_of_threads_is_in_the_table() -> None:
    """For any figures: threads are said to help only where they did so far, and reads to limit only what they do."""
    draw = random.Random(0)
    said = set[Binds]()
    for _ in range(3000):
        rates = [draw.choice([(1, 1, 1, 1), (1, 2, 4, 8), (1, 1.9, 2.4, 2.3), (1, 1.02, 1.04, 1.07)]) for _ in range(2)]
        scale = draw.choice([0.3, 0.8, 0.95, 1.3])
        noisy = [[100 * factor * draw.uniform(0.95, 1.05) for factor in one] for one in rates]
        cores = draw.choice([0.2, 1.0, 3.9])
        measured = list(zip((1, 2, 4, 8), *noisy, strict=True))
        pipeline = [(threads, scale * own, min(threads, cores)) for threads, own, _ in measured]
        raw = [(threads, rate, 0.1) for threads, _, rate in measured]
        verdict = judge(case(pipeline, raw))
        said.add(verdict.binds)
        rate, own_gain = (max(pipeline, key=lambda one: one[1]), pipeline[-1][1] / pipeline[-2][1])
        helps = "help" in verdict.sentence and "not help" not in verdict.sentence
        if helps and verdict.binds in (Binds.TURNS, Binds.DECODER):
            assert rate[0] == 8, verdict
            assert own_gain >= 1.1, verdict
        if verdict.binds in (Binds.DEVICE, Binds.UNKNOWN):
            best = fastest([Measured(*one) for one in pipeline])
            beats = best.rate > 1.05 * dict(one[:2] for one in raw)[best.threads]
            assert beats == (verdict.binds is Binds.UNKNOWN), verdict
            if "more threads help" in verdict.sentence:
                assert raw[-1][1] >= 1.1 * raw[-2][1], verdict
        if verdict.sentence.endswith(", and more threads gain nothing."):
            assert max(own[1] for own in pipeline) <= pipeline[0][1] / 0.97 + 1e-9, verdict
    assert {Binds.TURNS, Binds.DEVICE, Binds.CORES, Binds.LOCK, Binds.UNKNOWN} <= said


def test_a_gain_is_said_as_the_table_shows_it() -> None:
    verdict = judge(case([(1, 100.0, 0.3), (8, 104.0, 0.3)], LATENCY))
    assert "1.04x as many as with 1" in verdict.sentence


def test_a_device_elsewhere_is_the_network() -> None:
    assert judge(replace(SLOW_DEVICE, network=True)).binds is Binds.NETWORK
    assert "the network is the limiting factor" in judge(replace(NARROW_DEVICE, network=True)).sentence


def test_cores_that_others_use_are_not_there() -> None:
    shared = case([(1, 100, 1.0), (2, 190, 1.9), (4, 200, 2.0)], MEMORY)
    assert judge(shared).binds is Binds.TURNS
    others = replace(shared, pipeline=[replace(one, other_cores=1.8) for one in shared.pipeline])
    assert judge(others).binds is Binds.CORES
    assert "2.0 of 4 cores are busy with it, 1.8 with other processes" in judge(others).sentence
    waiting = replace(SLOW_DEVICE, pipeline=[replace(one, other_cores=3.5) for one in SLOW_DEVICE.pipeline])
    assert judge(waiting).binds is Binds.DEVICE


def test_one_number_of_threads_tells_nothing_of_the_devices_growth() -> None:
    verdict = judge(case([(4, 400, 0.5)], [(4, 410, 0.2)]))
    assert "so try other numbers of threads" in verdict.sentence
    assert verdict.sentence.endswith("400 images/s with 4 threads.")


def test_of_equal_rates_fewer_threads_are_the_fastest() -> None:
    measured = [Measured(8, 100, 1), Measured(2, 98, 1), Measured(1, 60, 1)]
    assert fastest(measured).threads == 2

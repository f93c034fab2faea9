"""Clips come in the order of their index, once each, and the master hears of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common import topics
from essp_common.cache.port import clip_key
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    PREDICT,
    TRAIN,
    VALIDATION,
    ClipReady,
    ClipRef,
    FeatureReady,
    Recipe,
    StreamRequest,
)
from essp_engine.intake.ordered import Delivery, IntakeOptions, Share, largest_share
from tests.unit.essp_engine.intake.ordered_bench import CONSUMER, FLOW, JOB, OrderedBench, places, plan, take_all

RGB = IntakeOptions(job=JOB, consumer="trainer.rgb", stream="rgb", feature="rgb")


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], set[tuple[int, int]], Position, int]:
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    clips = [(p, i) for p, size in enumerate(sizes) for i in range(size)]
    twice = draw(st.lists(st.sampled_from(clips), max_size=6)) if clips else []
    order = draw(st.permutations(clips + twice))
    skipped = set(draw(st.lists(st.sampled_from(clips), max_size=3))) if clips else set()
    start_phase = draw(st.integers(0, len(sizes) - 1))
    start = Position(start_phase, draw(st.integers(0, sizes[start_phase])))
    return sizes, order, skipped, start, draw(st.sampled_from([1, 2, 3, 64]))


@given(deliveries(), st.sampled_from([0, 1, 5]))
def test_every_clip_from_the_start_on_comes_once_in_order(
    case: tuple[list[int], list[tuple[int, int]], set[tuple[int, int]], Position, int], fetches: int
) -> None:
    sizes, order, skipped, start, world_size = case
    bench = OrderedBench(fetches)
    phases = [plan(TRAIN, epoch, size) for epoch, size in enumerate(sizes)]
    for p, i in order:
        bench.feature(phases[p], i, skipped="gone" if (p, i) in skipped else "")
    together: list[tuple[int, int | str]] = []
    for rank in range(world_size):
        options = IntakeOptions(JOB, CONSUMER, "flow10", "flow", rank=rank, world_size=world_size)
        with bench.intake(phases, options, start) as intake:
            taken = take_all(intake)
            assert intake.finished
            mine = [(p, i) for p, size in enumerate(sizes) for i in range(size) if i % 64 % world_size == rank]
            clips = [place for place in places(taken) if place[1] != "end"]
            assert clips == [place for place in mine if place >= start]
            assert [p for p, i in places(taken) if i == "end"] == list(range(start.phase_index, len(sizes)))
            for t in taken:
                if isinstance(t, Delivery):
                    assert bool(t.skipped) == ((t.phase_index, t.clip.index) in skipped)
                    assert bytes(t.value) == (b"" if t.skipped else f"1.{t.phase_index}.{t.clip.index}.0".encode())
            intake.finish([t for t in taken if isinstance(t, Delivery)])
            together += clips
    reported = [(p.trained.epoch, i) for p in bench.progress() for i in p.trained.indices]
    first = start
    assert sorted(r for r in reported if r >= first) == sorted(place for place in together if place not in skipped)
    before = {place for place in order if place < first and place not in skipped}
    assert {r for r in reported if r < first} == before, "done long ago, and the master asks: it must be told"
    assert bench.cache.usage().keys == 0
    assert bench.backlog() == 0
    bench.bus.close()


def test_the_end_of_a_pass_comes_before_the_next_one(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 2), plan(VALIDATION, 0, 0), plan(TRAIN, 1, 1)]
    bench.feature(phases[2], 0)
    bench.feature(phases[0], 1)
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert intake.waiting == 2
        bench.feature(phases[0], 0)
        assert places(take_all(intake)) == [(0, 0), (0, 1), (0, "end"), (1, "end"), (2, 0), (2, "end")]
        assert intake.finished


def test_a_clip_says_where_its_consumer_stands(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 3)]
    bench.feature(phases[0], 2)
    with bench.intake(phases, start=Position(0, 2)) as intake:
        taken = intake.take(0)
        assert isinstance(taken, Delivery)
        assert taken.position == Position(0, 3)


def test_a_message_for_what_was_taken_before_is_acked_and_dropped(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 2)]
    bench.feature(phases[0], 0)
    with bench.intake(phases) as intake:
        intake.finish([t for t in take_all(intake) if isinstance(t, Delivery)])
        bench.feature(phases[0], 0)  # made again, for somebody else
        assert bench.cache.usage().keys == 1
        assert take_all(intake) == []
        assert bench.cache.usage().keys == 0
        assert bench.backlog() == 0
        assert [list(p.trained.indices) for p in bench.progress()] == [[0], [0]], "the master is told again"


def test_a_message_for_what_is_in_hand_is_no_report(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0)
    with bench.intake(phases) as intake:
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        bench.feature(phases[0], 0)
        assert take_all(intake) == []
        assert bench.progress() == []
        intake.finish(taken)
        assert [list(p.trained.indices) for p in bench.progress()] == [[0]]


def test_messages_of_other_jobs_streams_and_passes_are_left_alone_or_dropped(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0, job="another")
    bench.feature(phases[0], 0, stream="flow5")
    bench.feature(plan(TRAIN, 7, 1), 0)  # a phase this job does not have
    bench.feature(phases[0], 1)  # it has one clip
    bench.send(topics.features("flow"), 0, b"\xff\xff not protobuf")
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert intake.waiting == 0
        assert bench.cache.usage().keys == 2, "the bytes of others are theirs to free"
        assert bench.backlog() == 0


def test_rgb_takes_the_clips_themselves(bench: OrderedBench) -> None:
    clip = ClipRef(job=JOB, purpose=TRAIN, epoch=0, index=0)
    key = clip_key(JOB, TRAIN, 0, 0, 0)
    bench.cache.put(key, b"frames", ["trainer.rgb", "extractor.flow"], 60)
    bench.send(topics.CLIPS, 0, ClipReady(clip=clip, key=key, bytes=6).SerializeToString())
    with bench.intake([plan(TRAIN, 0, 1)], RGB) as intake:
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert [bytes(t.value) for t in taken] == [b"frames"]
        intake.finish(taken)
    assert bench.cache.usage().keys == 1, "the extractor has not acked yet"


def test_what_is_made_for_others_is_left_to_them(bench: OrderedBench) -> None:
    clip = ClipRef(job=JOB, purpose=TRAIN, epoch=0, index=0)
    feature = FeatureReady(clip=clip, stream="flow10", key="k", consumers=["trainer.other"])
    bench.send(topics.features("flow"), 0, feature.SerializeToString())
    recipe = Recipe(streams=[StreamRequest(stream="rgb", feature="rgb", consumers=["trainer.other"])])
    bench.send(topics.CLIPS, 0, ClipReady(clip=clip, key="k", recipe=recipe).SerializeToString())
    for options in (FLOW, RGB):
        with bench.intake([plan(TRAIN, 0, 1)], options) as intake:
            assert intake.take(0) is None
            assert intake.waiting == 0
    assert bench.progress() == [], "nothing of it is missed"
    assert bench.backlog() == 0


@pytest.mark.parametrize(("clips", "ranks"), [(8, 1), (8, 4), (3, 3), (4, 3), (70, 3), (128, 7), (130, 9), (1, 64)])
def test_no_rank_takes_more_of_consecutive_clips_than_the_largest_share(clips: int, ranks: int) -> None:
    options = [IntakeOptions("j", "c", "s", "rgb", rank=rank, world_size=ranks) for rank in range(ranks)]
    shares = [
        sum(each.owns(index) for index in range(begin, begin + clips)) for begin in range(2 * 64) for each in options
    ]
    assert largest_share(clips, ranks) == max(shares)


def test_a_share_has_the_blocks_on_its_partitions_but_not_those_that_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a decoder of an earlier release has put on the partition of another's block is for that one to ask for."""
    monkeypatch.setattr(topics, "BLOCK_CLIPS", 2)
    bench, phases = OrderedBench(), [plan(PREDICT, 0, 8)]
    partitions = [topics.clip_partition(PREDICT, index, topics.DATA_PARTITIONS) for index in range(8)]
    mine = frozenset({partitions[0], partitions[2], partitions[6]})
    keys = []
    for index in range(8):
        keys.append(bench.feature(phases[0], index, send=False))
        message = FeatureReady(clip=ClipRef(job=JOB, purpose=PREDICT, index=index), stream="flow10", key=keys[-1])
        place = partitions[index if index != 4 else 0]
        bench.bus.publish(topics.features("flow"), b"", message.SerializeToString(), partition=place)
    options = replace(FLOW, share=Share(mine, topics.DATA_PARTITIONS, saved=frozenset({1})))
    with bench.intake(phases, options) as intake:
        taken = take_all(intake)
        assert [index for _, index in places(taken)] == [0, 1, 6, 7, "end"]
        intake.finish([t for t in taken if isinstance(t, Delivery)])
    assert [index for index, key in enumerate(keys) if bench.cache.holds(key)] == [4, 5]
    assert {i for p in bench.progress() for i in p.trained.indices} == {0, 1, 2, 3, 6, 7}
    assert bench.backlog() == 1, "the one on a partition of another"

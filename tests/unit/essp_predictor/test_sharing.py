"""Predictors share the clips of a job: the same answers from any number of them, and each clip is scored once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise

import pytest

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.pb.v1.messages_pb2 import PREDICT, TRAIN, Progress
from essp_predictor import stream
from essp_predictor.job import PredictionJob
from essp_predictor.service import Predictor
from tests.harness.predictor_bench import CLIPS, CLIPS_PER_VIDEO, FEATURES, PredictorBench, model_at
from tests.harness.waiting import until


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is one video, and saved by itself."""
    monkeypatch.setattr(topics, "BLOCK_CLIPS", CLIPS_PER_VIDEO)
    monkeypatch.setattr(stream, "_SAVE_S", 0.0)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, frozenset[int]]:
    """Worker -> the share of the job that it has opened last."""
    last: dict[str, frozenset[int]] = {}
    open_streams = PredictionJob._streams

    def streams(self: PredictionJob, partitions: frozenset[int]) -> list[stream.StreamPhase]:
        found = open_streams(self, partitions)
        last[self._worker] = partitions
        return found

    monkeypatch.setattr(PredictionJob, "_streams", streams)
    return last


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The answers of one predictor."""
    root = tmp_path_factory.mktemp("alone")
    model_at(root)
    bench = PredictorBench(root)
    with bench.predictor():
        bench.deliver_all(CLIPS)
        bench.ending()
    return bench.store.get(layout.PREDICTIONS)


def scored(reports: Iterable[Progress]) -> dict[str, dict[str, list[int]]]:
    """Worker -> consumer -> the clips that it has reported."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for progress in reports:
        assert not progress.HasField("failed"), "nothing is made again"
        if progress.HasField("trained"):
            found[progress.worker][progress.trained.consumer] += progress.trained.indices
    return found


def share_of(predictor: Predictor) -> set[int]:
    """The clips that fall to a predictor."""
    owned = predictor._share()
    return {i for i in CLIPS if topics.clip_partition(PREDICT, i, topics.DATA_PARTITIONS) in owned}


def both_have_work(one: Predictor, two: Predictor, opened: dict[str, frozenset[int]]) -> bool:
    """Whether both have a share, and have opened the job with it."""
    mine, its = share_of(one), share_of(two)
    divided = bool(mine and its) and mine | its == set(CLIPS) and not mine & its
    return divided and opened == {"one": one._share(), "two": two._share()}


@pytest.mark.parametrize("order", [CLIPS, CLIPS[::-1]])
def test_two_predictors_divide_the_clips_and_give_the_answers_of_one(
    bench: PredictorBench, alone: bytes, opened: dict[str, frozenset[int]], order: list[int]
) -> None:
    with bench.predictor(worker="one") as one, bench.predictor(worker="two") as two:
        until(lambda: both_have_work(one, two, opened))
        shares = {"one": share_of(one), "two": share_of(two)}
        bench.deliver_all(order)
        found = scored(bench.until_finished())
    for worker, share in shares.items():
        for name in FEATURES:
            assert sorted(found[worker][f"predictor.{name}"]) == sorted(share), "each clip is scored once"
    assert bench.store.get(layout.PREDICTIONS) == alone
    assert bench.cache.usage().keys == 0


def test_one_that_comes_later_takes_its_share_of_a_running_job(
    bench: PredictorBench, alone: bytes, opened: dict[str, frozenset[int]]
) -> None:
    with bench.predictor(worker="one") as one:
        bench.deliver_all(CLIPS[:2])
        reports = bench.reports()
        first = scored(next(reports) for _ in FEATURES)
        assert first == {"one": {f"predictor.{name}": [0, 1] for name in FEATURES}}
        with bench.predictor(worker="two") as two:
            until(lambda: both_have_work(one, two, opened))
            share = share_of(two)
            bench.deliver_all(CLIPS[2:])
            found = scored(bench.until_finished())
    assert {i for indices in found["two"].values() for i in indices} == share - {0, 1} != set()
    assert bench.store.get(layout.PREDICTIONS) == alone


def test_the_share_of_one_that_leaves_falls_to_the_others(
    bench: PredictorBench, alone: bytes, opened: dict[str, frozenset[int]]
) -> None:
    """What it had saved is not scored again, and nothing is made again that is still in the cache."""
    reports = bench.reports()
    with bench.predictor(worker="one") as one, ExitStack() as leaves:
        two = leaves.enter_context(bench.predictor(worker="two"))
        until(lambda: both_have_work(one, two, opened))
        saved = share_of(two)
        bench.deliver_all(sorted(saved))
        found = scored(next(reports) for _ in range(len(FEATURES) * len(saved) // CLIPS_PER_VIDEO))
        assert {i for indices in found["two"].values() for i in indices} == saved
        leaves.close()
        until(lambda: share_of(one) == set(CLIPS))
        bench.deliver_all(sorted(set(CLIPS) - saved))
        rest = scored(bench.until_finished())
    assert {i for indices in rest["one"].values() for i in indices} == set(CLIPS) - saved
    assert bench.store.get(layout.PREDICTIONS) == alone


def test_the_one_that_leads_may_leave(bench: PredictorBench, alone: bytes) -> None:
    with bench.predictor(worker="two"), ExitStack() as leaves:
        one = leaves.enter_context(bench.predictor(worker="one"))
        until(lambda: bool(one._share()))
        bench.deliver_all(CLIPS)
        leaves.close()
        bench.finished()
    assert bench.store.get(layout.PREDICTIONS) == alone
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 0


def test_blocks_of_any_range_of_partitions_come_at_even_intervals() -> None:
    """So that all predictors have work at the same time, whatever number of them there is."""
    for partitions in (1, 7, 64, 100, 512):
        blocks = [
            topics.clip_partition(PREDICT, block * topics.BLOCK_CLIPS, partitions) for block in range(4 * partitions)
        ]
        assert sorted(blocks[:partitions]) == list(range(partitions))
        for predictors in (2, 3, 5):
            for number in range(predictors) if partitions >= 8 * predictors else ():
                own = range(number * partitions // predictors, (number + 1) * partitions // predictors)
                turns = [turn for turn, partition in enumerate(blocks) if partition in own]
                assert max(b - a for a, b in pairwise(turns)) <= 2 * predictors
    assert [topics.clip_partition(TRAIN, index, 64) for index in (0, 1, 64, 65)] == [0, 1, 0, 1]

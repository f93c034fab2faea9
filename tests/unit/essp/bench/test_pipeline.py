"""The pipeline gives full batches of whole samples in the order of the seed, whatever its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.bench.pipeline import Batch, Kind, Pipeline, Plan, measured
from essp.bench.places import Extent, Place, Wrap
from essp.bench.sources import Damaged, Indices, Loaded, Sample, Task
from essp_common.errors import PermanentError, Unavailable
from tests.harness.waiting import LONGEST_S


@dataclass
class Numbers:
    """Samples that are their own index; some are damaged, and tasks hold `together` of them."""

    count: int
    damaged: frozenset[int] = frozenset()
    together: int = 1
    during: Callable[[int], object] = lambda number: None
    recognised: str = "numbers"
    unit: str = "number"
    classes: tuple[str, ...] = ()
    done: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return self.count

    def tasks(self, order: Indices, seed: int) -> list[Task]:
        return [
            NumbersTask(self, order[begin : begin + self.together].tolist())
            for begin in range(0, len(order), self.together)
        ]

    def objects(self) -> Sequence[Place]:
        return ()

    def through(self, wrap: Wrap) -> Numbers:
        return self


@dataclass
class NumbersTask:
    source: Numbers
    numbers: list[int]

    @property
    def size(self) -> int:
        return len(self.numbers)

    def extents(self) -> Sequence[Extent]:
        return ()

    def read(self) -> Loaded:
        return Loaded((), 10, count=len(self.numbers))

    def load(self) -> Loaded:
        for number in self.numbers:
            self.source.during(number)
        self.source.done += self.numbers
        good = [number for number in self.numbers if number not in self.source.damaged]
        samples = [Sample(np.full((1, 1, 3), number % 256, np.uint8), number) for number in good]
        bad = tuple(Damaged(str(number), "broken") for number in self.numbers if number in self.source.damaged)
        return Loaded(samples, 10 * len(self.numbers), bad)


def taken(source: Numbers, **plan: Any) -> list[Batch]:
    with Pipeline(source, Plan(**plan)) as pipeline:
        return list(pipeline)


def labels(batches: list[Batch]) -> list[list[int]]:
    return [batch.labels.tolist() for batch in batches if batch.labels is not None]


@given(
    st.integers(1, 30), st.sets(st.integers(0, 29)), st.integers(1, 5), st.integers(1, 7), st.integers(1, 6),
    st.integers(1, 5), st.integers(0, 3),
)  # fmt: skip
def test_batches_are_whole_and_in_the_order_of_the_seed(
    count: int, damaged: set[int], together: int, batch: int, batches: int, threads: int, prefetch: int
) -> None:
    bad = frozenset(damaged & set(range(count - 1)))  # one at least is whole
    source = Numbers(count, bad, together)
    plan = {"batch": batch, "batches": batches, "seed": 5}
    found = taken(source, **plan, threads=threads, prefetch=prefetch)
    assert [one.count for one in found] == [batch] * batches
    orders = [np.random.default_rng((5, epoch)).permutation(count).tolist() for epoch in range(batch * batches)]
    expected = [number for order in orders for number in order if number not in bad][: batch * batches]
    assert [number for one in labels(found) for number in one] == expected
    for one in found:
        assert one.frames is not None
        assert one.frames[:, 0, 0, 0].tolist() == (one.labels.tolist() if one.labels is not None else None)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_bytes_alone_are_counted(prefetch: int) -> None:
    with Pipeline(Numbers(10, together=2), Plan("read", 4, 3, 2, prefetch)) as pipeline:
        found = list(pipeline)
        assert [(one.count, one.frames, one.labels) for one in found] == [(4, None, None)] * 3
        assert (pipeline.tally.samples, pipeline.tally.bytes) == (12, 60)


def test_nothing_is_read_that_no_batch_needs() -> None:
    source = Numbers(100)
    taken(source, batch=4, batches=3, threads=8, prefetch=1)
    assert len(source.done) == 12


def test_damaged_samples_are_named_each_time() -> None:
    with Pipeline(Numbers(6, frozenset({2, 4})), Plan(batch=4, batches=2, threads=3)) as pipeline:
        list(pipeline)
        assert sorted(one.name for one in pipeline.tally.damaged) == ["2", "2", "4", "4"]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_source_without_a_whole_sample_is_an_error(prefetch: int) -> None:
    with pytest.raises(PermanentError, match=r"no one of 5 numbers is complete: .*: broken"):
        taken(Numbers(5, frozenset(range(5))), batch=2, batches=1, threads=8, prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_what_a_store_raises_ends_the_pipeline(prefetch: int) -> None:
    def fail(number: int) -> None:
        raise Unavailable("no answer")

    with pytest.raises(Unavailable, match="no answer"):
        taken(Numbers(5, during=fail), batch=2, batches=1, threads=2, prefetch=prefetch)


@pytest.mark.parametrize("kind", ["read", "full"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_pipeline_that_is_stopped_ends_early(kind: Kind, prefetch: int) -> None:
    stopped = threading.Event()
    made: list[int] = []

    def tell(count: int) -> None:
        made.append(count)
        stopped.set()

    took, _ = measured(Numbers(50), Plan(kind, 5, 10, 1, prefetch), stopped.is_set, tell)
    assert not took.whole
    assert took.samples == 5 * len(made) < 50


def test_as_many_tasks_are_under_way_as_there_are_threads() -> None:
    barrier = threading.Barrier(4)
    taken(Numbers(8, during=lambda number: barrier.wait(LONGEST_S)), batch=8, batches=1, threads=4)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_so_many_batches_are_made_ahead(prefetch: int) -> None:
    """The threads come to a stop, with the batches that are ahead made, and nothing more."""
    limit = threading.Semaphore(0)
    source = Numbers(100, during=lambda number: limit.release())
    with Pipeline(source, Plan(batch=4, batches=20, threads=1, prefetch=prefetch)) as pipeline:
        batches = iter(pipeline)
        for number in range(1, 4):
            next(batches)
            for _ in range(4 if number > 1 else 4 * (prefetch + 1)):
                assert limit.acquire(timeout=LONGEST_S)
    assert len(source.done) <= 4 * (3 + prefetch) + 2 + 1


def test_leaving_early_ends_all_threads() -> None:
    before = set(threading.enumerate())
    for prefetch in (0, 2):
        with Pipeline(Numbers(1000), Plan(batch=2, batches=400, threads=3, prefetch=prefetch)) as pipeline:
            next(iter(pipeline))
        assert set(threading.enumerate()) == before

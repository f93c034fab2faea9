"""The order of records: a pure function, and every sample as likely as any other."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from essp_common.records.sampler import Draws, permutation, sample
from tests.lanes import often

LEAST_P = 1e-4
"""The draws are the same in each run, so a test that passes once always does."""


def reservoir(records: int, size: int, generator: np.random.Generator, slip: int = 0) -> list[int]:
    """Algorithm 1 of OneAccess: the k-th record (from 1) is kept with probability size / k.

    `slip` 1: as in its published program, which draws one slot too many, so that later records come too seldom.
    """
    kept = list(range(size))
    for number in range(size, records):
        slot = int(generator.integers(0, number + 1 + slip))
        if slot < size:
            kept[slot] = number
    return kept


def subsets(drawn: list[Any]) -> list[int]:
    """How often each subset of 3 out of 6 was drawn."""
    counts = Counter(frozenset(map(int, one)) for one in drawn)
    return [counts[frozenset(subset)] for subset in combinations(range(6), 3)]


DRAWING = {
    "sample": lambda i: sample(6, 3, seed=1, epoch=0, number=i),
    "sample of a sample": lambda i: permutation(6, seed=1, epoch=i)[:4][permutation(4, seed=2, epoch=i)[:3]],
    "begin of an epoch": lambda i: permutation(6, seed=1, epoch=i)[:3],
    "end of an epoch": lambda i: permutation(6, seed=1, epoch=i)[3:],
}


@pytest.mark.parametrize("how", often(DRAWING, 2))
def test_every_subset_is_as_likely_as_any_other(how: str) -> None:
    """Theorem 2, and 3 for samples of samples."""
    assert chisquare(subsets([DRAWING[how](i) for i in range(4000)])).pvalue > LEAST_P


def test_reservoir_sampling_draws_the_same_and_its_published_slip_would_show() -> None:
    generator = np.random.default_rng(1)
    assert chisquare(subsets([reservoir(6, 3, generator) for _ in range(4000)])).pvalue > LEAST_P
    assert chisquare(subsets([reservoir(6, 3, generator, slip=1) for _ in range(4000)])).pvalue < LEAST_P


@pytest.mark.parametrize(("records", "size"), often([(50, 20), (50, 30), (50, 4), (5, 5), (1000, 3)], 2))
def test_every_record_is_as_likely_at_every_place_of_a_sample(records: int, size: int) -> None:
    """Theorem 1; and the order within a sample is uniform as well."""
    drawn = np.array([sample(records, size, seed=3, epoch=1, number=i) for i in range(40 * records // size)])
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    assert chisquare(np.bincount(drawn.reshape(-1), minlength=records)).pvalue > LEAST_P
    for place in (0, size - 1):
        assert chisquare(np.bincount(drawn[:, place] % 5, minlength=5)).pvalue > LEAST_P


def test_orders_of_a_sample_are_equally_likely() -> None:
    orders = Counter(tuple(sample(8, 3, seed=5, epoch=0, number=i).argsort()) for i in range(3000))
    assert chisquare(list(orders.values())).pvalue > LEAST_P
    assert len(orders) == 6


@given(st.integers(1, 300), st.integers(0, 2**63), st.integers(0, 1000), st.data())
def test_an_epoch_has_each_record_once_however_it_is_cut(records: int, seed: int, epoch: int, data: Any) -> None:
    whole = Draws(records, seed).piece(epoch, 0, records)
    assert sorted(whole.tolist()) == list(range(records))
    cuts = sorted({0, records, *data.draw(st.lists(st.integers(0, records)))})
    draws = Draws(records, seed)
    assert np.concatenate([draws.piece(epoch, *cut) for cut in pairwise(cuts)]).tolist() == (whole.tolist())


@given(st.integers(2, 300), st.integers(0, 2**63), st.data())
def test_with_replacement_samples_are_drawn_anew_however_they_are_cut(records: int, seed: int, data: Any) -> None:
    size = data.draw(st.integers(1, records))
    draws = Draws(records, seed, size)
    whole = draws.piece(2, 0, records)
    assert len(whole) == records
    for begin in range(0, records, size):
        assert len(set(whole[begin : begin + size].tolist())) == len(whole[begin : begin + size])
    begin, end = sorted((data.draw(st.integers(0, records)), data.draw(st.integers(0, records))))
    assert draws.piece(2, begin, end).tolist() == whole[begin:end].tolist()


def test_epochs_seeds_and_samples_differ() -> None:
    orders = {tuple(permutation(100, seed, epoch)) for seed in range(3) for epoch in range(3)}
    orders |= {tuple(Draws(100, 0, 50).piece(0, begin, begin + 50)) for begin in (0, 50)}
    assert len(orders) == 11


def test_the_order_is_what_it_was() -> None:
    """A training that is resumed with a later version goes on with the same records."""
    assert permutation(8, seed=1, epoch=2).tolist() == [2, 0, 4, 7, 3, 1, 5, 6]
    assert sample(1000, 5, seed=1, epoch=2, number=3).tolist() == [395, 736, 59, 720, 468]


@pytest.mark.parametrize(("records", "size"), [(0, 0), (2**32, 0), (5, 6), (5, -1)])
def test_what_cannot_be_drawn_is_refused(records: int, size: int) -> None:
    with pytest.raises(ValueError, match="record"):
        Draws(records, 0, size)

"""Random numbers are those of the generators that NumPy documents."""

from __future__ import annotations

import numpy as np
import pytest

from essp_engine.learning.randomness import counter_generator, seed_of


@pytest.mark.parametrize("parts", [("augment", 0, 0, 0), ("mix", 2**40, "train", 7)])
def test_a_generator_draws_what_philox_with_its_key_does(parts: tuple[object, ...]) -> None:
    ours, theirs = counter_generator(*parts), np.random.Generator(np.random.Philox(key=seed_of(*parts)))
    for _ in range(20):
        assert ours.integers(7) == theirs.integers(7)
        assert ours.random() == theirs.random()
    assert np.array_equal(ours.normal(size=100), theirs.normal(size=100))

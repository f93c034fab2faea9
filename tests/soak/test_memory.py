"""A trainer a hundred times slower than the decoders: memory stays flat and under the budget."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.soak.memory import plot, run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

SECONDS = 8.0
GROWTH = 8 * 2**20
"""Noise of allocators; clips that piled up would be many times that: two decoders make 10 MiB of them a second."""


@pytest.mark.lane("long")
def test_memory_is_flat_however_slow_the_trainer(tmp_path: Path) -> None:
    course = run(SECONDS, tmp_path)
    plot(course, tmp_path / "memory.png")
    assert max(course.outstanding_bytes) <= course.budget_bytes
    assert max(course.redis_bytes) <= course.budget_bytes
    assert median(course.redis_bytes) > course.budget_bytes / 2, "the decoders were not held back by the budget"
    assert {name: course.growth(name) for name in course.rss_bytes if course.growth(name) > GROWTH} == {}

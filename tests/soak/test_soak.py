"""A short soak: processes of every kind are killed, drained and frozen, and nothing comes of it but lost time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.run import SoakOptions, soak
from tests.soak.verdict import violations

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


@pytest.mark.lane("long")
def test_a_short_soak_holds_every_invariant(tmp_path: Path) -> None:
    lines: list[str] = []
    figures = soak(SoakOptions(seconds=15.0, seed=157, mean_interval_s=1.5, epochs=1, clips=24), tmp_path, lines.append)
    assert violations(figures) == [], "\n".join(lines)
    assert figures.restarts > 0

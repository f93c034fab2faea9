"""Servers that fail, and links to them, while a job is under way."""

from __future__ import annotations

import pytest

from tests.faults.conftest import Begin
from tests.faults.world import World

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("fleet"), pytest.mark.timeout(300)]


def test_redis_is_emptied(world: World, begin: Begin) -> None:
    run = begin(hold_at=5).held()
    assert world.keys()
    world.redis.execute("FLUSHALL")
    assert run.finish().counts.lost > 0

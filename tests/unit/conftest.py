"""What unit tests of several services start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from essp_common.wiring import Adapters
from tests.harness.fleet import Fleet, FleetOf, adapters_in, make_job


@pytest.fixture
def adapters(tmp_path: Path) -> Iterator[Adapters]:
    """A bus and a cache in memory, and `tmp_path` as the object store."""
    made = adapters_in(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fleet_of(adapters: Adapters, tmp_path: Path) -> Iterator[FleetOf]:
    """Makes workers of a job (by default that of `make_job`), who do what the test says."""
    made: list[Fleet] = []

    def make(job: Any = None, **more: Any) -> Fleet:
        made.append(Fleet(adapters, job or make_job(tmp_path), **more))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


@pytest.fixture
def fleet(fleet_of: FleetOf) -> Fleet:
    """The workers of the job of `make_job`."""
    return fleet_of()

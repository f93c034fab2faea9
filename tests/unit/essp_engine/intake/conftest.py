"""An intake that fetches clips one by one, and one that fetches them ahead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.essp_engine.intake.ordered_bench import OrderedBench


@pytest.fixture(params=[0, 3], ids=["one by one", "fetched ahead"])
def bench(request: pytest.FixtureRequest) -> Iterator[OrderedBench]:
    bench = OrderedBench(request.param)
    yield bench
    bench.bus.close()

"""Which lane a test runs in, and so which verb runs it.

| verb | lane | what | on two cores |
|---|---|---|---|
| `make test` | `test` | what a change can break | 6 minutes |
| `make test-promises` | `promises` | deployments, faults, storms, foreign programs | 8 minutes |
| `make test-long` | `long` | all seeds, encodings, networks; 200 examples of each property | each night |
| `make test-gpu` | `gpu` | what only a GPU shows | under 2 minutes |
| `make test-kafka` | `kafka` | what only Apache Kafka shows, and tests of `AGAIN` on it | 8 minutes |
| `make test-cluster` | `cluster` | Kubernetes, and tests of `AGAIN` on it | 7 minutes, with pods |
| `make test-lerobot` | `lerobot` | LeRobot's own class and policy against ours | 2 minutes, with LeRobot installed |

The rule: a test runs in the lane that its mark names (`pytest.mark.lane("long")`, for a whole module `pytestmark`); one
without a mark in the lane of its folder (`FOLDERS`); any other in `test`. So a new test runs with each change, unless
it or its folder says otherwise. `often` and `one_of_each` mark the cases of a test that are too many for each change;
`across` begins with those of a product that differ the most.

`pytest PATH` runs whatever lies there, of each lane but those of `APART`. `pytest --lane=fast` (`make test-fast`) runs
those of the lane `test` that start no server and no process: `harness/fast_lane.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

FOLDERS = {
    "tests/adversary": "promises",
    "tests/chart": "promises",
    "tests/faults": "promises",
    "tests/integration": "promises",
    "tests/kills": "promises",
    "tests/page": "promises",
    "tests/soak": "promises",
    "tests/witness": "promises",
    "tests/corpus": "promises",
    "tests/unit/benchmarks": "promises",
    "tests/unit/harness": "promises",
    "tests/gpu": "gpu",
    "tests/kafka": "kafka",
    "tests/cluster": "cluster",
    "tests/lerobot": "lerobot",
}
APART = frozenset({"gpu", "kafka", "cluster", "lerobot"})
"""Lanes whose tests need what is not everywhere."""
LANES = ("test", "promises", "long", *sorted(APART))
AGAIN = {
    "kafka": (
        "tests/contract/test_bus.py",
        "tests/contract/test_bus_answers.py",
        "tests/contract/test_kafka_rights.py",
        "tests/contract/test_tenants.py",
        "tests/faults",
        "tests/integration/test_connected_loops.py",
        "tests/integration/test_deadletters.py",
        "tests/integration/test_elastic_master.py",
        "tests/integration/test_master_failover.py",
        "tests/integration/test_servers_journey.py",
        "tests/integration/test_trainer_ranks.py",
        "tests/soak",
        "tests/unit/essp/cli/test_setup.py",
        "tests/unit/essp/doctor/test_doctor.py",
        "tests/unit/essp_common/runtime/test_tls.py",
    ),
    "cluster": ("tests/unit/essp_master/kubernetes",),
}
"""Tests of other lanes that a lane runs as well, on what it is for: those that start a broker on Apache Kafka; those of
the driver, but for those marked `double`, on a real API server."""
FAST = "fast"
_MENTIONS = ("mark.lane(", "tests.lanes")
"""A module that has neither in its text has no marks of lanes."""


def often(cases: Iterable[Any], count: int) -> list[Any]:
    """The cases of a parametrization, of which the first `count` run with each change, and the others at night."""
    return [
        case if number < count else pytest.param(*case if isinstance(case, tuple) else (case,), marks=_LONG)
        for number, case in enumerate(cases)
    ]


def one_of_each(cases: Iterable[tuple[Any, ...]], kind: Callable[[tuple[Any, ...]], Hashable]) -> list[Any]:
    """The cases of a parametrization. The first of each kind runs with each change, the others at night."""
    seen: set[Hashable] = set()
    found: list[Any] = []
    for case in cases:
        found.append(pytest.param(*case, marks=_LONG) if kind(case) in seen else case)
        seen.add(kind(case))
    return found


def across(*lists: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The product of lists, ordered so that each value, and then each pair of values, occurs as early as possible."""
    columns = [list(values) for values in lists]
    rest = list(product(*(range(len(values)) for values in columns)))
    seen = Counter[tuple[tuple[int, int], ...]]()

    def again(case: tuple[int, ...], size: int) -> int:
        """How often combinations of this size in the case have occurred in earlier cases."""
        return sum(seen[each] for each in combinations(enumerate(case), size))

    found: list[tuple[Any, ...]] = []
    while rest:
        sizes = range(1, len(columns) + 1)
        case = min(rest, key=lambda case: [again(case, size) for size in reversed(sizes)])
        rest.remove(case)
        found.append(tuple(values[number] for values, number in zip(columns, case, strict=True)))
        seen.update(each for size in sizes for each in combinations(enumerate(case), size))
    return found


_LONG = pytest.mark.lane("long")


@cache
def lane_of_folder(path: Path, root: Path) -> str:
    """The lane of the tests in a file or folder that have no mark."""
    below = path.relative_to(root).as_posix() + "/"
    return next((lane for folder, lane in FOLDERS.items() if below.startswith(folder + "/")), "test")


def lane_of(item: pytest.Item) -> str:
    """The lane of a test."""
    own = [mark for mark in item.own_markers if mark.name == "lane"]  # a case: after its function
    mark = own[-1] if own else item.get_closest_marker("lane")
    lane = lane_of_folder(item.path, item.config.rootpath) if mark is None else mark.args[0]
    if lane not in LANES:
        raise pytest.UsageError(f"{item.nodeid}: {lane!r} is not a lane; use {', '.join(LANES)}")
    return str(lane)


class Lane:
    """The plugin that leaves out the tests of other lanes. None: those of `APART` only."""

    def __init__(self, lane: str | None) -> None:
        self._lanes = {lane} if lane else {*LANES} - APART
        self._also = AGAIN.get(lane or "", ())
        if lane == FAST:
            self._lanes = {"test"}

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Modules without a test of the lane are not even loaded, which would take longer than some tests."""
        if lane_of_folder(collection_path, config.rootpath) in self._lanes or collection_path.suffix != ".py":
            return None
        if self._takes(collection_path, config.rootpath):
            return None
        text = collection_path.read_text(encoding="utf-8")
        return None if any(mention in text for mention in _MENTIONS) else True

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if not (lane_of(item) in self._lanes or self._takes_case(item))]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]

    def _takes(self, path: Path, root: Path) -> bool:
        """Whether the lane also runs the tests of this module, which belong to others."""
        return any(path.is_relative_to(root / place) for place in self._also)

    def _takes_case(self, item: pytest.Item) -> bool:
        if not self._takes(item.path, item.config.rootpath) or item.get_closest_marker("double") is not None:
            return False
        return lane_of(item) in ("test", "promises")

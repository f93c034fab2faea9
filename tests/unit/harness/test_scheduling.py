"""Tests are dealt out whole by what they share, the costliest first."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

from xdist.workermanage import WorkerController

from tests.harness.scheduling import COSTS_S, TOGETHER, CostliestFirst


class Node:
    """A worker that does what it is told."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given.append(indices)


def dealt(*tests: str) -> list[str]:
    """The tests, in the order in which one worker gets them."""
    scheduler = CostliestFirst.__new__(CostliestFirst)
    scheduler.assigned_work = OrderedDict()
    queue: dict[str, dict[str, bool]] = {}
    for test in tests:
        queue.setdefault(scheduler._split_scope(test), {})[test] = False
    scheduler.workqueue = OrderedDict(queue)
    node = cast(Any, Node())
    scheduler.registered_collections = OrderedDict({cast(WorkerController, node): list(tests)})
    while scheduler.workqueue:
        scheduler._assign_work_unit(node)
    return [tests[index] for given in node.given for index in given]


def test_the_costliest_come_first_and_files_stay_whole() -> None:
    few, many = "tests/unit/a.py::test_few", [f"tests/unit/b.py::test_many[{number}]" for number in range(3)]
    deployed = ["tests/faults/test_a.py::test_one", "tests/soak/test_soak.py::test_two"]
    assert dealt(few, deployed[0], *many, deployed[1]) == [*deployed, *many, few]


def test_what_is_named_as_costly_is_there() -> None:
    root = Path(__file__).parents[3]
    places = [place for name in (*COSTS_S, *TOGETHER) for place in TOGETHER.get(name, (name,))]
    assert [place for place in places if not (root / place).exists()] == []

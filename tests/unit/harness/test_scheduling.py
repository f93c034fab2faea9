"""Tests are dealt out whole by what they share, the costliest first."""

from __future__ import annotations

import re
from collections import OrderedDict
from itertools import cycle
from pathlib import Path
from typing import Any, cast

from xdist.workermanage import WorkerController

from tests.harness.scheduling import COSTS_S, DEPLOYMENTS, TOGETHER, CostliestFirst
from tests.lanes import lane_of_folder


class Node:
    """A worker that does what it is told."""

    def __init__(self) -> None:
        self.given: list[list[int]] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given.append(indices)


def dealt(*tests: str, workers: int = 1) -> list[list[str]]:
    """The tests, of each worker in the order in which it gets them. They get units by turns and end none."""
    scheduler = CostliestFirst.__new__(CostliestFirst)
    scheduler.assigned_work = OrderedDict()
    queue: dict[str, dict[str, bool]] = {}
    for test in tests:
        queue.setdefault(scheduler._split_scope(test), {})[test] = False
    scheduler.workqueue = OrderedDict(queue)
    nodes = [cast(Any, Node()) for _ in range(workers)]
    scheduler.registered_collections = OrderedDict({cast(WorkerController, node): list(tests) for node in nodes})
    turns = cycle(nodes)
    while scheduler.workqueue:
        scheduler._assign_work_unit(next(turns))
    return [[tests[index] for given in node.given for index in given] for node in nodes]


def test_the_costliest_come_first_and_files_stay_whole() -> None:
    few, many = "tests/unit/a.py::test_few", [f"tests/unit/b.py::test_many[{number}]" for number in range(3)]
    deployed = ["tests/faults/test_a.py::test_one", "tests/soak/test_soak.py::test_two"]
    assert dealt(few, deployed[0], *many, deployed[1]) == [[*deployed, *many, few]]


def test_two_deployments_run_side_by_side_and_a_third_when_nothing_else_is_left() -> None:
    deployed = [
        "tests/faults/test_workers_fail.py::test_one",
        "tests/faults/test_a.py::test_two",
        "tests/soak/test_soak.py::test_three",
    ]
    few, fewer = "tests/unit/a.py::test_few[0]", "tests/unit/b.py::test_fewer"
    begun = dealt(few, "tests/unit/a.py::test_few[1]", fewer, *deployed, workers=3)
    assert begun == [[deployed[0], fewer], [deployed[1], deployed[2]], [few, "tests/unit/a.py::test_few[1]"]]


def test_what_is_named_as_costly_is_there() -> None:
    root = Path(__file__).parents[3]
    named = {*COSTS_S, *TOGETHER, *DEPLOYMENTS}
    places = [place for name in named for place in TOGETHER.get(name, (name,))]
    assert [place for place in places if not (root / place).exists()] == []


def test_nothing_dealt_out_as_one_takes_more_than_a_sixth_of_its_lane() -> None:
    root = Path(__file__).parents[3]
    of_lane: dict[str, list[float]] = {}
    for name, cost_s in COSTS_S.items():
        place = root / TOGETHER.get(name, (name,))[0]
        marked = (
            re.search(r'^pytestmark = .*lane\("([a-z]+)"\)', place.read_text("utf-8"), re.M)
            if place.is_file()
            else None
        )
        lane = marked[1] if marked else lane_of_folder(place, root)
        of_lane.setdefault(lane, []).append(cost_s)
    assert {
        lane: max(of_lane[lane]) for lane in ("test", "promises") if max(of_lane[lane]) > sum(of_lane[lane]) / 6
    } == {}

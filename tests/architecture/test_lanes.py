"""Each test runs in the lane that its mark or its folder names, and in no other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import itemgetter
from pathlib import Path

import pytest

from tests.lanes import AGAIN, APART, FAST, FOLDERS, LANES, across, often, one_of_each

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.lanes import Lane
def pytest_addoption(parser):
    parser.addoption("--lane")
def pytest_configure(config):
    config.addinivalue_line("markers", "lane: ")
    config.pluginmanager.register(Lane(config.getoption("--lane")))
"""
UNIT = """
import pytest
def test_new(): pass
@pytest.mark.lane("promises")
def test_deployed(): pass
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.lane("long"))])
def test_seed(seed): pass
@pytest.mark.lane("promises")
@pytest.mark.parametrize("point", [1, pytest.param(2, marks=pytest.mark.lane("long"))])
def test_point(point): pass
"""
FAULTS = """
import pytest
def test_fault(): pass
@pytest.mark.lane("test")
def test_kill(): pass
"""
DRIVER = """
import pytest
def test_pods(): pass
@pytest.mark.double
def test_fiat(): pass
"""
ELSEWHERE = {
    "unit": UNIT,
    "unit/essp_master/kubernetes": DRIVER,
    "faults": FAULTS,
    "cluster": "def test_chart(): pass",
    "gpu": "def test_cuda(): pass",
    "kafka": "def test_leader(): pass",
    "lerobot": "def test_policy(): pass",
    "soak": "def test_long(): pass",
}
OF_LANE = {
    "test": {"test_new", "test_seed[1]", "test_kill", "test_pods", "test_fiat"},
    FAST: {"test_new", "test_seed[1]", "test_kill", "test_pods", "test_fiat"},  # less those that start a process
    "promises": {"test_deployed", "test_point[1]", "test_fault", "test_long"},
    "long": {"test_seed[2]", "test_point[2]"},
    "cluster": {"test_chart", "test_pods"},
    "gpu": {"test_cuda"},
    "kafka": {"test_leader", "test_fault", "test_kill", "test_long"},
    "lerobot": {"test_policy"},
}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Tests in several folders, with marks and without."""
    pytester.makeini("[pytest]\n")
    pytester.makeconftest(CONFTEST.format(root=str(ROOT)))
    for folder, text in ELSEWHERE.items():
        (pytester.path / "tests" / folder).mkdir(parents=True)
        (pytester.path / "tests" / folder / f"test_in_{Path(folder).name}.py").write_text(text, encoding="utf-8")
    return pytester


def chosen(project: pytest.Pytester, options: Sequence[str]) -> set[str]:
    """The names of the tests that are left."""
    _, recorder = project.inline_genitems(*options, "-p", "no:schemathesis")
    return {item.name for item in recorder.getcall("pytest_collection_finish").session.items}


@pytest.mark.parametrize("lane", OF_LANE)
def test_a_lane_has_its_tests(project: pytest.Pytester, lane: str) -> None:
    assert chosen(project, [f"--lane={lane}"]) == OF_LANE[lane]


def test_without_a_lane_all_run_that_need_nothing_else(project: pytest.Pytester) -> None:
    assert chosen(project, []) == set.union(*(OF_LANE[lane] for lane in LANES if lane not in APART))


def test_a_module_without_a_test_of_the_lane_is_not_loaded(project: pytest.Pytester) -> None:
    (project.path / "tests" / "soak" / "test_in_soak.py").write_text("raise SystemExit", encoding="utf-8")
    assert chosen(project, ["--lane=test"]) == OF_LANE["test"]


def test_a_lane_that_is_not_there_is_refused(project: pytest.Pytester) -> None:
    text = "import pytest\npytestmark = pytest.mark.lane('night')\ndef test_a(): pass\n"
    (project.path / "tests" / "unit" / "test_marked.py").write_text(text, encoding="utf-8")
    result = project.runpytest_inprocess("--lane=test", "-p", "no:schemathesis")
    result.stderr.fnmatch_lines(["*'night' is not a lane; use test, promises, long, *"])


def test_the_first_cases_of_many_run_with_each_change() -> None:
    everyday, *others = often([(1, "a"), (2, "b"), (3, "c")], 1)
    assert everyday == (1, "a")
    assert [(case.values, case.marks[0].args) for case in others] == [((2, "b"), ("long",)), ((3, "c"), ("long",))]


def test_one_case_of_each_kind_runs_with_each_change() -> None:
    cases = one_of_each([(1, "a"), (2, "b"), (3, "a")], itemgetter(1))
    assert cases[:2] == [(1, "a"), (2, "b")]
    assert [(case.values, case.marks[0].args) for case in cases[2:]] == [((3, "a"), ("long",))]


def test_the_first_cases_of_a_product_have_each_value_and_each_pair() -> None:
    assert across("ab", "123") == [("a", "1"), ("b", "2"), ("a", "3"), ("b", "1"), ("a", "2"), ("b", "3")]
    cases = across("abc", "1234", "wxyz")
    assert [len({case[place] for case in cases[:4]}) for place in range(3)] == [3, 4, 4]
    assert len({case[1:] for case in cases[:16]}) == 16
    assert {*cases} == {*product("abc", "1234", "wxyz")}
    assert len(cases) == 48


def test_folders_of_lanes_exist() -> None:
    assert [folder for folder in FOLDERS if not (ROOT / folder).is_dir()] == []
    assert [place for places in AGAIN.values() for place in places if not (ROOT / place).exists()] == []


def test_marks_of_lanes_are_where_they_are_looked_for() -> None:
    """In the test's own module, since one that has none is not loaded for another lane than that of its folder."""
    modules = (path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_"))
    assert [path.name for path in modules if "mark.lane(" in path.read_text("utf-8")] == ["lanes.py"]

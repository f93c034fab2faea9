"""Where skips are refused, a test that is skipped fails and says why; one that is expected to fail does not."""

from __future__ import annotations

import pytest

from tests.harness.skips import SkipsRefused

pytest_plugins = ["pytester"]

TESTS = """
import pytest
@pytest.mark.skipif(True, reason="promtool is not installed")
def test_alerts(): pass
def test_later(): pytest.skip("no network")
@pytest.mark.xfail
def test_known(): assert False
def test_whole(): pass
"""


@pytest.mark.parametrize(("plugins", "outcome"), [([], (2, 0)), ([SkipsRefused()], (0, 2))], ids=["allowed", "refused"])
def test_what_is_skipped(pytester: pytest.Pytester, plugins: list[object], outcome: tuple[int, int]) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.inline_run("-p", "no:schemathesis", plugins=plugins)
    passed, skipped, failed = result.listoutcomes()
    assert [report.nodeid.partition("::")[2] for report in passed] == ["test_whole"]
    assert (len(skipped) - 1, len(failed)) == outcome  # the one that is expected to fail counts as skipped
    assert all("--refuse-skips" in str(report.longrepr) for report in failed)

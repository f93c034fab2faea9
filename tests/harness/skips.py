"""`pytest --refuse-skips`: a test that is skipped fails, and says what is missing. CI runs all tests or none."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


class SkipsRefused:
    """The plugin that `--refuse-skips` registers."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        return refused((yield))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        return refused((yield))


def refused(report: Report) -> Report:
    """The same; a failure instead of a skip."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\n--refuse-skips: install what is missing, or run without it"
    return report

"""Lets every failure be reported, whatever it is: one that cannot be ends a worker of pytest-xdist, or all of them.

What a worker sends may hold text that UTF-8 cannot, such as half a surrogate pair, or values that pytest-xdist cannot
send. And what formats a failure may fail itself. Should a worker end nevertheless, its last words are said again at the
end, where people look first.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator
from typing import Any

import pytest

_SENT = (type(None), bool, int, float, bytes, str)
"""What execnet sends, and nothing derived from it."""
_LINES = 16
"""Of the last words of a worker."""


class EveryFailureReported:
    """A plugin of the workers and of who deals the tests out."""

    def __init__(self) -> None:
        self._last_words: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        try:
            return (yield)
        except Exception:  # noqa: BLE001 - of any plugin
            assert call.when != "collect"
            failure = "".join(traceback.format_exception(call.excinfo.value)) if call.excinfo else ""
            words = f"{failure}\nThe report of this test could not be made:\n{traceback.format_exc()}"
            return pytest.TestReport(item.nodeid, item.location, {}, "failed", words, call.when)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        return sendable((yield))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> Generator[None, object, object]:
        self._last_words = self._last_words or str(excrepr).splitlines()[-_LINES:]  # what follows is of no interest
        return (yield)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if self._last_words and reporter is not None:
            reporter.write_sep("=", "what ended the tests, or one of their workers")
            reporter.write_line("\n".join(self._last_words))


class PassesReportedInShort:
    """A plugin of the workers: of what passed, nobody reads logs and marks, unless asked for, so they are not sent."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, config: pytest.Config, report: object) -> None:
        if isinstance(report, pytest.TestReport) and report.passed and not {"A", "P"} & {*config.option.reportchars}:
            report.sections, report.keywords = [], {}


def sendable(data: Any) -> Any:
    """The same, with an escape for each character that cannot be encoded, and a text for what cannot be sent."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, dict):
        return {sendable(key): sendable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return (list if isinstance(data, list) else tuple)(sendable(value) for value in data)
    return data if type(data) in _SENT else sendable(repr(data))

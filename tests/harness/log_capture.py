"""pytest catches the logs of each test, and for that looks through all loggers six times: once is enough.

A logger that does not propagate gets a handler of its own. Libraries have made thousands of loggers, few of which are
of that kind, so to look for them took longer than many a test.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, ClassVar

import _pytest.logging
import pytest


class LoggersLookedAtOnce:
    """The plugin: the loggers that do not propagate are looked for at the beginning of each test."""

    def __init__(self) -> None:
        vars(_pytest.logging)["catching_logs"] = _CatchingLogs

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        loggers = list(logging.root.manager.loggerDict.values())
        _CatchingLogs.apart = [one for one in loggers if isinstance(one, logging.Logger) and not one.propagate]
        return (yield)


class _CatchingLogs(_pytest.logging.catching_logs[Any]):
    """Attaches a handler for as long as a block lasts."""

    apart: ClassVar[list[logging.Logger]] = []
    """Those that do not propagate."""

    def __enter__(self) -> Any:
        self.attached_loggers = [logging.root, *self.apart]
        for logger in self.attached_loggers:
            logger.addHandler(self.handler)
        if self.level is not None:
            self.handler.setLevel(self.level)
            self.orig_level = logging.root.level
            logging.root.setLevel(min(self.orig_level, self.level))
        return self.handler

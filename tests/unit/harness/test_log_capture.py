"""Logs are caught of all loggers, of those that do not propagate, too."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def apart() -> Iterator[logging.Logger]:
    """A logger that does not propagate. The first test that asks for it is told nothing of it: it begins before."""
    logger = logging.getLogger("tests.apart")
    logger.propagate = False
    yield logger
    del logging.root.manager.loggerDict["tests.apart"]


@pytest.mark.parametrize("again", [False, True])
def test_a_logger_that_does_not_propagate_is_heard(
    apart: logging.Logger, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    apart.error("of one")
    logging.getLogger("tests.other").error("of another")
    assert caplog.messages == (["of one"] if again else []) + ["of another"]

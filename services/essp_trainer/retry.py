"""Waiting out servers that do not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from essp_common.errors import TransientError

log = logging.getLogger(__name__)

T = TypeVar("T")


def persistently(call: Callable[[], T], leaving: Callable[[], bool], wait: Callable[[float], object] = time.sleep) -> T:
    """Repeat an idempotent call until bus, cache and store answer.

    Raises the last error once `leaving`: what was not said then is delivered again.
    """
    while True:
        try:
            return call()
        except TransientError as error:
            if leaving():
                raise
            log.warning("%s; trying again", error)
            wait(error.retry_after_s)

"""`essp page` while it is open: the rest is in `tests/unit/essp/embedded/test_finished.py` and `tests/page`."""

from __future__ import annotations

import threading

import pytest

from essp.cli import page
from essp_common.errors import Unavailable


def test_the_page_outlives_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_AGAIN_S", 0.0)
    interrupted, read = threading.Event(), 0

    def read_again() -> None:
        nonlocal read
        read += 1
        if read < 3:
            raise Unavailable("the store does not answer", retry_after_s=0.0)
        interrupted.set()

    page.keep_up(interrupted, read_again)
    assert read == 3

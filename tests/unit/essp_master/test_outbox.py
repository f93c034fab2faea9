"""Effects are carried out in order, and none that fails ends the master or holds up the others for ever."""

from __future__ import annotations

import pytest

from essp_common.bus.memory import MemoryBus
from essp_common.errors import PermanentError, TransientError, Unavailable
from essp_master.effects.outbox import Outbox


def test_an_error_that_nobody_expected_is_tried_again_and_then_given_up() -> None:
    outbox, done = Outbox(MemoryBus()), list[str]()

    def broken() -> None:
        raise TypeError("a bytes-like object is required")

    outbox.add(broken, "a")
    outbox.add(lambda: done.append("b"), "b")
    for _ in range(2):
        with pytest.raises(Unavailable, match="TypeError"):
            outbox.send()
        assert not outbox.refused()
    outbox.send()
    assert outbox.empty
    assert done == ["b"]
    [(job, error)] = outbox.refused()
    assert job == "a"
    assert isinstance(error, PermanentError)
    assert "TypeError" in str(error)


def test_one_error_that_nobody_expected_is_no_jobs_end() -> None:
    outbox, errors, done = Outbox(MemoryBus()), [KeyError("x"), Unavailable("y"), KeyError("z")], list[str]()

    def flaky() -> None:
        if errors:
            raise errors.pop(0)
        done.append("done")

    outbox.add(flaky, "a")
    for _ in range(3):
        with pytest.raises(TransientError):
            outbox.send()
    outbox.send()
    assert done == ["done"]
    assert not outbox.refused()

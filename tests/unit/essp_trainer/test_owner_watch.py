"""A process notices that another one has its training, whatever its store says before."""

from __future__ import annotations

import threading
from contextlib import closing

from essp_common.errors import Fenced, Unavailable
from essp_trainer.checkpoints.owner_watch import OwnerWatch
from tests.harness.waiting import until


def test_a_store_that_does_not_answer_for_a_while_ends_no_watch() -> None:
    answers = [Unavailable("no answer"), Unavailable("no answer"), Fenced("taken over")]

    def check() -> None:
        raise answers.pop(0)

    with closing(OwnerWatch(check, 0.0)) as watch:
        until(lambda: watch.fenced is not None)
    assert str(watch.fenced) == "taken over"


def test_nobody_looks_any_more_once_it_is_closed() -> None:
    entered, go = threading.Event(), threading.Event()

    def check() -> None:
        entered.set()
        go.wait()

    watch = OwnerWatch(check, 0.0)
    entered.wait()
    threading.Timer(0.0, go.set).start()
    watch.close()
    watch.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "essp-owner"]

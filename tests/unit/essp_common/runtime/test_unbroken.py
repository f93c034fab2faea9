"""What is begun comes to its end, whoever is interrupted meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from essp_common.runtime.unbroken import unbroken
from tests.harness.waiting import LONGEST_S, until


def test_it_returns_and_raises_what_the_call_does() -> None:
    assert unbroken(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        unbroken(lambda: 1 // 0)


def test_an_interrupt_is_heard_at_once_and_the_call_goes_on() -> None:
    go_on, done = threading.Event(), threading.Event()

    def call() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(LONGEST_S)
        done.set()

    with pytest.raises(KeyboardInterrupt):
        unbroken(call)
    assert not done.is_set()
    go_on.set()
    assert done.wait(LONGEST_S)


def test_what_comes_after_an_interrupt_waits_for_what_is_under_way() -> None:
    go_on = threading.Event()
    order: list[str] = []

    def first() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(LONGEST_S)
        order.append("first")

    def second() -> None:
        order.append("second")

    with pytest.raises(KeyboardInterrupt):
        unbroken(first)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(go_on.set)
        unbroken(second)
    assert order == ["first", "second"]


def test_threads_that_no_signal_interrupts_call_it_themselves() -> None:
    with ThreadPoolExecutor(1) as pool:
        mine = pool.submit(threading.current_thread).result()
        assert pool.submit(unbroken, threading.current_thread).result() is mine


def test_without_another_thread_it_is_called_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert unbroken(threading.current_thread) is threading.main_thread()


def test_an_error_holds_nothing_alive() -> None:
    class Held:
        pass

    def fail() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        raise ValueError

    kept: list[weakref.ref[Held]] = []
    gc.disable()
    try:
        with suppress(ValueError):
            unbroken(fail)
        until(lambda: kept[0]() is None)
    finally:
        gc.enable()

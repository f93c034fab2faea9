"""What a fork inherits: locks are free there, and clients are its own."""

from __future__ import annotations

import os
import threading

import pytest

from essp_common.runtime import forks
from essp_common.runtime.forks import Mutex, Remade
from tests.harness.fork import beside_a_fork


@pytest.mark.processes
def test_a_fork_has_free_locks_and_clients_of_its_own() -> None:
    class Broken:
        def forked(self) -> None:
            raise RuntimeError("defect")

    class Client:
        def __init__(self) -> None:
            self.made_by = os.getpid()

    broken, client = Broken(), Remade(Client)
    mutex, own = Mutex(), Mutex(reentrant=True)
    forks.follow(broken)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex.held:
            held.set()
            done.wait()

    def right() -> bool:
        with mutex.held, own.held, own.held:
            return bool(client.made_by == os.getpid()) and client.made_by == client.made_by

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with own.held, beside_a_fork(right):
            pass
    finally:
        done.set()
        thread.join()
    assert client.made_by == os.getpid()

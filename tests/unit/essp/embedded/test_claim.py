"""One process at a time runs a job in an output; one that was killed stands in nobody's way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from essp.embedded.claim import Claim
from essp_common.artifacts import layout
from essp_common.errors import Conflict
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import numbered
from essp_common.objects.port import ObjectInfo
from essp_common.wiring import Stores
from tests.harness.waiting import LONGEST_S

HOLDER = """
import sys
from essp_common.wiring import Stores
from essp.embedded.claim import Claim
with Claim(sys.argv[1], Stores(("file:///",))):
    print("held", flush=True)
    sys.stdin.read()
"""
STORES = Stores(("file:///",))


def held_by_another(uri: str) -> subprocess.Popen[str]:
    """A process that holds an output until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.processes
def test_who_holds_an_output_is_named_until_it_has_ended(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with held_by_another(uri) as process:
        with (
            pytest.raises(Conflict, match=rf"process {process.pid} on .*end it with: kill {process.pid}"),
            Claim(uri, STORES),
        ):
            pass
        process.communicate("")
    with Claim(uri, STORES):
        pass
    assert not list(STORES.under(uri).list())


@pytest.mark.processes
def test_what_a_killed_process_held_is_taken_over(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with held_by_another(uri) as process:
        process.send_signal(signal.SIGKILL)
        # Its number stays taken until it is reaped, which nobody may have done yet.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with Claim(uri, STORES):
            assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


def test_a_number_that_another_process_has_now_counts_as_gone(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(uri, STORES):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 7), json.dumps(json.loads(mine) | {"began": "1"}).encode())
    with Claim(uri, STORES):
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 8)]


def test_a_lock_names_one_process_and_not_whoever_has_its_number(tmp_path: Path) -> None:
    """The process that started this one lives, and began at another time."""
    uri = f"file://{tmp_path}/run"
    with Claim(uri, STORES):
        mine = json.loads(STORES.under(uri).get(numbered(layout.LOCKS, 1)))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(mine | {"pid": os.getppid()}).encode())
    with Claim(uri, STORES):
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


@pytest.mark.parametrize("stale", ["names no process", "names one that has ended"])
def test_a_stale_lock_hides_no_other(tmp_path: Path, stale: str) -> None:
    uri = f"file://{tmp_path}/run"
    store = STORES.under(uri)
    with Claim(uri, STORES):
        mine = store.get(numbered(layout.LOCKS, 1))
    ended = json.dumps(json.loads(mine) | {"began": "1"}).encode()
    store.put(numbered(layout.LOCKS, 1), b"{}" if stale == "names no process" else ended)
    store.put(numbered(layout.LOCKS, 2), mine)
    with pytest.raises(Conflict, match="in use"), Claim(uri, STORES):
        pass
    assert [info.key for info in store.list()] == [numbered(layout.LOCKS, 1), numbered(layout.LOCKS, 2)]


@pytest.mark.parametrize(
    "odd",
    [b"", b"null", b"[]", b"{}", b"[" * 100_000, *(f'{{"pid": {pid}}}'.encode() for pid in ("-1", '"x"', 10**30))],
)
def test_what_says_of_no_process_that_it_holds_an_output_counts_as_gone(tmp_path: Path, odd: bytes) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(uri, STORES):
        mine = json.loads(STORES.under(uri).get(numbered(layout.LOCKS, 1)))
    changed = json.dumps(mine | json.loads(odd)).encode() if b"pid" in odd else odd
    STORES.under(uri).put(numbered(layout.LOCKS, 1), changed)
    with Claim(uri, STORES):
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


def test_of_another_machine_nothing_is_assumed(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(uri, STORES):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(json.loads(mine) | {"host": "elsewhere"}).encode())
    with pytest.raises(Conflict, match=f"on elsewhere .*if it is gone, delete {uri}/locks/"), Claim(uri, STORES):
        pass


def test_a_listing_that_a_take_over_has_overtaken_lets_nobody_else_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(uri, STORES):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(json.loads(mine) | {"began": "1"}).encode())
    with ExitStack() as stack:
        listing = DirectoryStore.list

        def overtaken(store: DirectoryStore, prefix: str = "") -> Iterator[ObjectInfo]:
            monkeypatch.setattr(DirectoryStore, "list", listing)
            stack.enter_context(Claim(uri, STORES))  # writes 2 behind the place of the listing, deletes 1 before it
            return iter([])

        monkeypatch.setattr(DirectoryStore, "list", overtaken)
        with pytest.raises(Conflict, match="in use"), Claim(uri, STORES):
            pass
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


def test_of_many_that_find_a_stale_one_a_single_one_goes_on(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(uri, STORES):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(json.loads(mine) | {"began": "1"}).encode())
    outcomes: list[str] = []
    start, leave = threading.Barrier(8), threading.Event()

    def came_to(outcome: str) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 8:
            leave.set()

    def contend() -> None:
        start.wait()
        try:
            with Claim(uri, STORES):
                came_to("entered")
                leave.wait(LONGEST_S)
        except Exception as error:  # noqa: BLE001  nobody is to wait for it
            came_to(type(error).__name__)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {"entered": 1, "Conflict": 7}


def test_a_file_in_the_way_is_said_and_not_tried_for_ever(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"notes")
    with pytest.raises(Conflict, match="part of its path is an object"), Claim(f"file://{tmp_path}/out", STORES):
        pass

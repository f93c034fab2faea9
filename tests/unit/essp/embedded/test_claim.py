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
from typing import NoReturn

import pytest

from essp.embedded.claim import LEASE_S, Claim
from essp_common.artifacts import layout
from essp_common.errors import Conflict, Fenced, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import numbered
from essp_common.objects.port import ObjectInfo
from essp_common.wiring import Stores
from tests.harness.waiting import LONGEST_S

HOLDER = """
import sys
from essp_common.wiring import Stores
from essp.embedded.claim import Claim
with Claim(Stores(("file:///",)).under(sys.argv[1])):
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


def of_elsewhere(uri: str) -> dict[str, object]:
    """This process's claim, as if it were of another machine or container."""
    with Claim(STORES.under(uri)):
        mine: dict[str, object] = json.loads(STORES.under(uri).get(numbered(layout.LOCKS, 1)))
    return mine | {"kernel": f"{mine['kernel']}0"}


def unavailable(*_: object, **__: object) -> NoReturn:
    raise Unavailable("no answer")


@pytest.mark.processes
def test_who_holds_an_output_is_named_until_it_has_ended(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with held_by_another(uri) as process:
        with (
            pytest.raises(Conflict, match=rf"process {process.pid} on .*end it with: kill {process.pid}"),
            Claim(STORES.under(uri)),
        ):
            pass
        process.communicate("")
    with Claim(STORES.under(uri)):
        pass
    assert not list(STORES.under(uri).list())


@pytest.mark.processes
def test_what_a_killed_process_held_is_taken_over(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with held_by_another(uri) as process:
        process.send_signal(signal.SIGKILL)
        # Its number stays taken until it is reaped, which nobody may have done yet.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with Claim(STORES.under(uri)):
            assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


def test_a_number_that_another_process_has_now_counts_as_gone(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 7), json.dumps(json.loads(mine) | {"began": "1"}).encode())
    with Claim(STORES.under(uri)):
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 8)]


def test_a_lock_names_one_process_and_not_whoever_has_its_number(tmp_path: Path) -> None:
    """The process that started this one lives, and began at another time."""
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)):
        mine = json.loads(STORES.under(uri).get(numbered(layout.LOCKS, 1)))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(mine | {"pid": os.getppid(), "began": "-"}).encode())
    with Claim(STORES.under(uri)):
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


@pytest.mark.parametrize("stale", ["names no process", "names one that has ended"])
def test_a_stale_lock_hides_no_other(tmp_path: Path, stale: str) -> None:
    uri = f"file://{tmp_path}/run"
    store = STORES.under(uri)
    with Claim(STORES.under(uri)):
        mine = store.get(numbered(layout.LOCKS, 1))
    ended = json.dumps(json.loads(mine) | {"began": "1"}).encode()
    store.put(numbered(layout.LOCKS, 1), b"{}" if stale == "names no process" else ended)
    store.put(numbered(layout.LOCKS, 2), mine)
    with pytest.raises(Conflict, match="in use"), Claim(STORES.under(uri)):
        pass
    assert [info.key for info in store.list()] == [numbered(layout.LOCKS, 1), numbered(layout.LOCKS, 2)]


@pytest.mark.parametrize(
    "odd",
    [b"", b"null", b"[]", b"{}", b"[" * 100_000, *(f'{{"pid": {pid}}}'.encode() for pid in ("-1", '"x"', 10**30))],
)
def test_what_says_of_no_process_that_it_holds_an_output_is_waited_for_as_another_machine_is(
    tmp_path: Path, odd: bytes
) -> None:
    uri = f"file://{tmp_path}/run"
    changed = of_elsewhere(uri) | json.loads(odd) if b"pid" in odd else None
    STORES.under(uri).put(numbered(layout.LOCKS, 1), odd if changed is None else json.dumps(changed).encode())
    pauses: list[float] = []
    with Claim(STORES.under(uri), pause=pauses.append):
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]
    assert sum(pauses) == LEASE_S


@pytest.mark.parametrize("host", ["the same", "another"])
def test_a_holder_elsewhere_counts_as_gone_when_it_was_silent_for_long(tmp_path: Path, host: str) -> None:
    """Another container of the same host name has a process of the same number, which began at the same tick."""
    uri = f"file://{tmp_path}/run"
    silent = of_elsewhere(uri) | ({} if host == "the same" else {"host": "elsewhere"})
    STORES.under(uri).put(numbered(layout.LOCKS, 7), json.dumps(silent).encode())
    said: list[str] = []
    pauses: list[float] = []
    with Claim(STORES.under(uri), said.append, pauses.append) as claim:
        assert claim.waited
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 8)]
    assert sum(pauses) == LEASE_S
    assert len(said) == 1
    assert f"is held by process {silent['pid']} on {silent['host']}, which has" in said[0]


@pytest.mark.parametrize("silent_s", [0.0, LEASE_S - 10.0])
def test_a_holder_elsewhere_that_gives_a_sign_of_life_keeps_its_output(tmp_path: Path, silent_s: float) -> None:
    uri = f"file://{tmp_path}/run"
    holder = json.dumps(of_elsewhere(uri) | {"host": "elsewhere"}).encode()
    STORES.under(uri).put(numbered(layout.LOCKS, 1), holder)
    waited_s = 0.0

    def pause(seconds: float) -> None:
        nonlocal waited_s
        waited_s += seconds
        if waited_s > silent_s:
            STORES.under(uri).put(numbered(layout.LOCKS, 2), holder)

    with (
        pytest.raises(Conflict, match=r"in use by process .* on elsewhere, .*end it on elsewhere"),
        Claim(STORES.under(uri), pause=pause),
    ):
        pass
    assert waited_s < LEASE_S
    assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, number) for number in (1, 2)]


def test_a_holder_elsewhere_that_leaves_is_not_waited_for_any_longer(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(of_elsewhere(uri)).encode())
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        STORES.under(uri).delete(numbered(layout.LOCKS, 1))

    with Claim(STORES.under(uri), pause=pause):
        assert len(pauses) == 1


def test_a_store_that_fails_while_a_holder_is_watched_makes_nobody_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/run"
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(of_elsewhere(uri)).encode())

    def pause(_: float) -> None:
        monkeypatch.setattr(DirectoryStore, "list", unavailable)

    with pytest.raises(Unavailable), Claim(STORES.under(uri), pause=pause):
        pass
    monkeypatch.undo()
    assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 1)]


def test_a_process_whose_beginning_is_hidden_is_not_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another user's is where /proc is mounted with `hidepid`."""
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), mine)
    read = Path.read_text

    def hidden(path: Path) -> str:
        if path.name == "stat":
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_text", hidden)
    pauses: list[float] = []
    with Claim(STORES.under(uri), pause=pauses.append):
        pass
    assert sum(pauses) == LEASE_S


def test_a_holder_renews_its_claim_and_leaves_nothing(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)) as claim:
        for _ in range(9):
            claim.renew()
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, n) for n in (7, 8, 9, 10)]
        claim.check()
    assert not list(STORES.under(uri).list())


def test_a_holder_that_was_frozen_learns_that_it_was_taken_over(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)) as claim:
        taken = json.dumps(of_elsewhere(f"file://{tmp_path}/other") | {"host": "elsewhere"}).encode()
        STORES.under(uri).put(numbered(layout.LOCKS, 2), taken)
        STORES.under(uri).delete(numbered(layout.LOCKS, 1))
        claim.check()
        claim.renew()
        with pytest.raises(Fenced, match=r"taken over by process .* on elsewhere"):
            claim.check()
    assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


def test_an_output_that_was_removed_and_begun_anew_is_not_its_first_holder_s(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)) as claim:
        claim.renew()
        for number in (1, 2):
            STORES.under(uri).delete(numbered(layout.LOCKS, number))
        claim.renew()  # nobody has it
        claim.check()
        STORES.under(uri).delete(numbered(layout.LOCKS, 3))
        STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(of_elsewhere(f"file://{tmp_path}/other")).encode())
        claim.renew()
        with pytest.raises(Fenced):
            claim.check()


def test_a_renewal_that_the_store_did_not_answer_is_known_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/run"
    put = DirectoryStore.put

    def unanswered(store: DirectoryStore, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        put(store, key, data, if_absent=if_absent)
        raise Unavailable("no answer")

    with Claim(STORES.under(uri)) as claim:
        monkeypatch.setattr(DirectoryStore, "put", unanswered)
        with pytest.raises(Unavailable):
            claim.renew()
        monkeypatch.undo()
        claim.renew()
        claim.check()
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, n) for n in (1, 2, 3)]
    assert not list(STORES.under(uri).list())


def test_a_claim_that_cannot_be_given_up_does_not_undo_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)):
        monkeypatch.setattr(DirectoryStore, "delete", unavailable)
    monkeypatch.undo()
    assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 1)]


def test_a_listing_that_a_take_over_has_overtaken_lets_nobody_else_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)):
        mine = STORES.under(uri).get(numbered(layout.LOCKS, 1))
    STORES.under(uri).put(numbered(layout.LOCKS, 1), json.dumps(json.loads(mine) | {"began": "1"}).encode())
    with ExitStack() as stack:
        listing = DirectoryStore.list

        def overtaken(store: DirectoryStore, prefix: str = "") -> Iterator[ObjectInfo]:
            monkeypatch.setattr(DirectoryStore, "list", listing)
            # writes 2 behind the place of the listing, deletes 1 before it
            stack.enter_context(Claim(STORES.under(uri)))
            return iter([])

        monkeypatch.setattr(DirectoryStore, "list", overtaken)
        with pytest.raises(Conflict, match="in use"), Claim(STORES.under(uri)):
            pass
        assert [info.key for info in STORES.under(uri).list()] == [numbered(layout.LOCKS, 2)]


def test_of_many_that_find_a_stale_one_a_single_one_goes_on(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/run"
    with Claim(STORES.under(uri)):
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
            with Claim(STORES.under(uri)):
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
    with pytest.raises(Conflict, match="part of its path is an object"), Claim(STORES.under(f"file://{tmp_path}/out")):
        pass

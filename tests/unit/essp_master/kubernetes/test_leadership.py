"""Of several masters one leads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kubernetes import client

from essp_master.failover.leader import Election
from tests.harness.kubernetes_api import Cluster
from tests.harness.kubernetes_objects import (
    NAMESPACE,
    TIMES_S,
)
from tests.harness.waiting import until

LONG_S = (600, 300, 1)
"""Of leases that outlast a test, however slow the machine is."""

Candidate = Callable[..., Election]


@pytest.fixture
def candidate(api: client.ApiClient, unique: str) -> Iterator[Candidate]:
    """Makes candidates for one lease, who take part no more when the test is over."""
    made: list[Election] = []

    def candidate(
        name: str, times_s: tuple[int, int, int] = LONG_S, lost: Callable[[], None] = pytest.fail
    ) -> Election:
        made.append(Election(api, NAMESPACE, unique, name, lost, times_s))
        return made[-1]

    yield candidate
    for election in made:
        election.resign()
        election.close()


def test_of_two_masters_one_leads_and_the_other_knows_who(candidate: Candidate) -> None:
    first, second = candidate("http://one"), candidate("http://two")
    first.start()
    until(lambda: first.leads)
    second.start()
    until(lambda: bool(second.leader))
    assert (second.leads, second.leader, first.leader) == (False, "http://one", "http://one")


def test_of_masters_that_were_given_one_url_one_leads(candidate: Candidate) -> None:
    """As where it is that of a load balancer in front of them."""
    first, second = candidate("http://masters"), candidate("http://masters")
    first.start()
    until(lambda: first.leads)
    second.start()
    until(lambda: second.leader == "http://masters")
    assert [second.candidacy().try_acquire_or_renew() for _ in range(3)] == [False] * 3
    assert not second.leads


@pytest.mark.parametrize("how", ["outage", "hanging"])
def test_a_leader_that_cannot_renew_gives_up_and_the_other_takes_over(
    cluster: Cluster, candidate: Candidate, how: str
) -> None:
    """Whether the API says that it is away, or says nothing."""
    lost = threading.Event()
    first = candidate("http://one", TIMES_S, lost.set)
    first.start()
    until(lambda: first.leads)
    setattr(cluster, how, True)
    until(lost.is_set, "it lost the lease")
    cluster.outage = False
    second = candidate("http://two", TIMES_S, threading.Event().set)
    assert second.wait_to_lead(threading.Event(), 0.1)
    assert second.leader == "http://two"


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0], ids=["forward", "back"])
def test_a_clock_that_is_set_moves_no_lease(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Neither is the lease of a leader that lives taken, nor is that of a dead one waited for any longer."""
    leader, standby = candidate("http://one").candidacy(), candidate("http://two").candidacy()
    assert leader.try_acquire_or_renew()
    steady, wall = time.monotonic, time.time
    assert not standby.try_acquire_or_renew()
    monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
    assert not standby.try_acquire_or_renew()
    monkeypatch.setattr(time, "monotonic", lambda: steady() + LONG_S[0] + 1)
    assert standby.try_acquire_or_renew()


@pytest.mark.parametrize("answer", [b"<html>gateway</html>", b"null", b'{"spec": {"renewTime": "yesterday"}}'])
def test_an_answer_that_nobody_understands_ends_no_election(
    cluster: Cluster, candidate: Candidate, answer: bytes
) -> None:
    """As of a proxy that answers in place of the API: a leader must not lead without a lease, nor a standby never."""
    lost, asked = threading.Event(), len(cluster.requests)
    first = candidate("http://one", TIMES_S, lost.set)
    cluster.garbled = answer
    first.start()
    until(lambda: len(cluster.requests) > asked + 1, "it goes on trying")
    cluster.garbled = None
    until(lambda: first.leads)
    cluster.garbled = answer
    until(lost.is_set, "it lost the lease")
    first.resign()
    cluster.garbled = None


def test_a_leader_that_leaves_lets_the_next_one_begin_at_once(candidate: Candidate) -> None:
    """A lease of ten minutes is not waited for."""
    first, second = candidate("http://one"), candidate("http://two")
    assert first.wait_to_lead(threading.Event(), 0.1)
    second.start()
    until(lambda: second.leader == "http://one")
    second.resign()
    assert second.leader == "http://one", "who does not lead has nothing to give up"
    first.resign()
    until(lambda: second.leads)


def test_a_standby_that_is_to_leave_leaves(candidate: Candidate) -> None:
    leader, standby = candidate("http://one"), candidate("http://two")
    leader.start()
    until(lambda: leader.leads)
    draining = threading.Event()
    draining.set()
    assert not standby.wait_to_lead(draining)


def test_a_leader_that_is_closed_keeps_its_lease_for_as_long_as_it_lasts(candidate: Candidate) -> None:
    """It ended in an error: what it was doing may go on."""
    first, second = candidate("http://one"), candidate("http://two")
    assert first.wait_to_lead(threading.Event(), 0.1)
    first.close()
    second.start()
    until(lambda: bool(second.leader))
    assert (second.leads, second.leader) == (False, "http://one")

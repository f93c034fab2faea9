"""Of several masters one leads."""

from __future__ import annotations

import threading

import pytest
from kubernetes import client

from essp_master.failover.leader import Election
from tests.harness.kubernetes_api import ApiServer, Cluster
from tests.harness.kubernetes_objects import (
    NAMESPACE,
    TIMES_S,
)
from tests.harness.waiting import until


def candidate(api: client.ApiClient, name: str, lost: threading.Event) -> Election:
    return Election(api, NAMESPACE, "essp-master", name, lost.set, TIMES_S)


def test_of_two_masters_one_leads_and_the_other_knows_who(api: client.ApiClient) -> None:
    first, second = candidate(api, "http://one", threading.Event()), candidate(api, "http://two", threading.Event())
    first.start()
    assert first.wait(10)
    second.start()
    assert not second.wait(1.5)
    assert (second.leads, second.leader, first.leader) == (False, "http://one", "http://one")


@pytest.mark.parametrize("how", ["outage", "hanging"])
def test_a_leader_that_cannot_renew_gives_up_and_the_other_takes_over(
    cluster: Cluster, server: ApiServer, how: str
) -> None:
    """Whether the API says that it is away, or says nothing."""
    lost = threading.Event()
    first = candidate(server.client(), "http://one", lost)
    first.start()
    assert first.wait(10)
    setattr(cluster, how, True)
    assert lost.wait(10), "within the renew deadline"
    cluster.outage = False
    second = candidate(server.client(), "http://two", threading.Event())
    assert second.wait_to_lead(threading.Event(), 0.1)
    assert second.leader == "http://two"


def test_a_leader_that_leaves_lets_the_next_one_begin_at_once(api: client.ApiClient) -> None:
    """A lease of ten minutes is not waited for."""
    lost = threading.Event()
    first = Election(api, NAMESPACE, "essp-handover", "http://one", lost.set, (600, 300, 1))
    second = Election(api, NAMESPACE, "essp-handover", "http://two", threading.Event().set, (600, 300, 1))
    assert first.wait_to_lead(threading.Event(), 0.1)
    second.start()
    until(lambda: second.leader == "http://one")
    second.resign()
    assert second.leader == "http://one", "who does not lead has nothing to give up"
    first.resign()
    assert second.wait(30)
    assert not lost.is_set()


def test_a_standby_that_is_to_leave_leaves(api: client.ApiClient) -> None:
    leader, standby = candidate(api, "http://one", threading.Event()), candidate(api, "http://two", threading.Event())
    leader.start()
    assert leader.wait(10)
    draining = threading.Event()
    draining.set()
    assert not standby.wait_to_lead(draining)

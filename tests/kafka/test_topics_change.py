"""Topics that somebody changes while they are read: more partitions, records or the whole topic deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kafka import KafkaAdminClient, TopicPartition

from essp_common.bus import kafka_subscription
from essp_common.bus.kafka import KafkaBus
from essp_common.bus.port import Bus, Record, Subscription
from essp_common.errors import FlowUnavailable, TransientError
from essp_common.runtime.troubles import Kind
from tests.contract.bus_suite import finish, take
from tests.harness.apache_kafka import ApacheKafka, admin_of
from tests.harness.waiting import LONGEST_S, until

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers learn soon of what has changed."""
    monkeypatch.setattr(kafka_subscription, "_METADATA_AGE_MS", 500)
    monkeypatch.setattr(kafka_subscription, "_PROBE_IDLE_S", 1.0)


@pytest.fixture
def bus(broker: ApacheKafka) -> Iterator[KafkaBus]:
    with closing(KafkaBus.from_url(broker.url)) as bus:
        yield bus


@pytest.fixture
def admin(broker: ApacheKafka) -> Iterator[KafkaAdminClient]:
    with admin_of(broker.url) as admin:
        yield admin


@pytest.fixture
def publish(broker: ApacheKafka, unique: str) -> Callable[..., None]:
    """Publishes the numbers `start..stop`, each to a partition of its own, as a process that has just started."""

    def publish_them(start: int, stop: int, partitions: int = 1) -> None:
        with closing(KafkaBus.from_url(broker.url)) as bus:
            for number in range(start, stop):
                bus.publish(unique, b"", str(number).encode(), number % partitions)

    return publish_them


def persistently(subscription: Subscription, count: int) -> list[Record]:
    """`take` from a bus that says now and then what it waits for."""
    deadline, found = time.monotonic() + LONGEST_S, list[Record]()
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        try:
            found += subscription.poll(100, 0.2)
        except TransientError:
            continue
    return found


def lost(bus: Bus) -> str:
    return bus.troubles().get(Kind.BUS_LOSES, "")


@pytest.mark.parametrize("group", [None, "g"])
def test_partitions_that_are_added_are_read(
    bus: KafkaBus, admin: KafkaAdminClient, publish: Callable[..., None], unique: str, group: str | None
) -> None:
    bus.ensure_topics({unique: 2})
    with closing(bus.subscribe([unique], group and unique + group)) as subscription:
        publish(0, 4, 2)
        finish(subscription, take(subscription, 4))
        admin.create_partitions({unique: 6})
        publish(10, 22, 6)
        found = persistently(subscription, 12)
    assert sorted(int(record.value) for record in found) == list(range(10, 22))
    assert not lost(bus)


def test_records_that_are_gone_before_they_are_read_are_told(
    bus: KafkaBus, admin: KafkaAdminClient, publish: Callable[..., None], unique: str
) -> None:
    bus.ensure_topics({unique: 1})
    publish(0, 10)
    with closing(bus.subscribe([unique], unique)) as first:
        finish(first, take(first, 3, max_records=3)[:3])
    admin.delete_records({TopicPartition(unique, 0): 8})
    with closing(bus.subscribe([unique], unique)) as second:
        assert [int(record.value) for record in take(second, 2)] == [8, 9]
        assert f"missed 5 records, the last ones of {unique}" in lost(bus)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("more", [3, 30])
def test_topic_that_is_made_again_is_read_from_its_beginning(
    bus: KafkaBus,
    admin: KafkaAdminClient,
    publish: Callable[..., None],
    unique: str,
    group: str | None,
    more: int,
) -> None:
    """Whether it then holds less or more than had been read of the one before."""
    bus.ensure_topics({unique: 1})
    publish(0, 10)
    with closing(bus.subscribe([unique], group and unique + group)) as subscription:
        finish(subscription, take(subscription, 10))
        admin.delete_topics([unique])
        with pytest.raises(FlowUnavailable, match=rf"has no topic {unique} any more; `essp setup` makes it again"):
            take(subscription, 1)
        until(lambda: unique not in admin.list_topics())
        bus.ensure_topics({unique: 1})
        publish(100, 100 + more)
        found = persistently(subscription, more)
        assert [int(record.value) for record in found] == list(range(100, 100 + more))
        until(lambda: f"{unique} was deleted and made again" in lost(bus))

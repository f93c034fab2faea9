"""Every adapter of the bus behaves like a bus, and each in its own way where that is promised."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from essp_common.bus import kafka, kafka_subscription
from essp_common.bus.kafka import KafkaBus
from essp_common.bus.kafka_clients import TopicsGone, Undelivered
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.kafka_rights import Rights
from essp_common.bus.kafka_subscription import KafkaSubscription
from essp_common.bus.liveness import Membership
from essp_common.bus.memory import MemoryBus, MemorySubscription
from essp_common.bus.port import Bus
from essp_common.errors import ConfigError, EsspError, FlowUnavailable, TransientError, Unavailable
from essp_common.runtime.troubles import Kind
from tests.contract.bus_suite import PARTITIONS, BusContract, Open, finish, numbers, own, take
from tests.harness.brokers import kafka_broker
from tests.harness.proxy import Proxy
from tests.harness.waiting import LONGEST_S, until

JOIN_GROUP = 11
"""The key of the request in Kafka's protocol."""


@pytest.fixture
def collected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a test leaves to the garbage collector is collected before the next one; log records would hold it."""
    with caplog.at_level(logging.CRITICAL + 1, "kafka"):
        yield
    gc.collect()


def leaves_sockets(test: Callable[..., None]) -> Callable[..., None]:
    """kafka-python leaves the closing of sockets that failed to connect to the garbage collector."""
    test = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")(test)
    test = pytest.mark.usefixtures("collected")(test)
    return test


def meet_a_defect(*_: object, **__: object) -> None:
    """As a method of kafka-python's clients."""
    raise KeyError("what an answer lacks")


class TestMemoryBus(BusContract):
    @pytest.fixture
    def bus(self) -> Iterator[Bus]:
        bus = MemoryBus(retained=10 * PARTITIONS)
        yield bus
        bus.close()

    def test_partitions_are_added_to_a_topic_that_is_in_use(self, bus: Bus, topic: str) -> None:
        """Kafka does it, too (tests/kafka); the broker of these tests does not."""
        bus.publish(topic, b"", b"before", PARTITIONS - 1)
        bus.flush()
        bus.ensure_topics({topic: 2 * PARTITIONS}, grow=True)
        bus.ensure_topics({topic: PARTITIONS})  # by a process that does not know of it yet
        bus.publish(topic, b"", b"after", 2 * PARTITIONS - 1)
        bus.flush()
        reader = bus.subscribe([topic], "g")
        try:
            assert {record.value for record in take(reader, 2)} == {b"before", b"after"}
            own(reader, 2 * PARTITIONS)
        finally:
            reader.close()
        with pytest.raises(ConfigError, match="not 32"):
            bus.ensure_topics({topic: 32})
        single = f"{topic}.single"
        bus.ensure_topics({single: 2})
        with pytest.raises(ConfigError, match="2 partitions"):
            bus.ensure_topics({single: 1}, grow=True)

    def test_each_url_gives_a_bus_of_its_own(self) -> None:
        one, other = MemoryBus.from_url("memory://"), MemoryBus.from_url("memory://")
        one.ensure_topics({"t": 1})
        other.ensure_topics({"t": 1})
        one.publish("t", b"", b"1")
        assert not other.subscribe(["t"], None).poll(1, 0.0)

    def test_of_what_has_come_again_only_the_latest_delivery_counts(
        self, bus: Bus, topic: str, publish_numbers: Callable[..., None]
    ) -> None:
        publish_numbers(0, 2, 0)
        with closing(bus.subscribe([topic], "g")) as subscription:
            assert isinstance(bus, MemoryBus)
            assert isinstance(subscription, MemorySubscription)
            first = take(subscription, 2)
            slots = list(subscription.slots)
            with bus.lock:
                subscription.take([])
                subscription.take(slots)
            again = take(subscription, 2)
            assert numbers(again) == numbers(first)
            finish(subscription, first)
            assert bus.backlog(topic, "g") == 2
            finish(subscription, [record.bare for record in again])
            assert bus.backlog(topic, "g") == 0

    def test_options_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="no options"):
            MemoryBus.from_url("memory://?size=3")

    def test_memory_is_freed_when_all_groups_are_done(
        self, bus: Bus, topic: str, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        fast, slow = subscribe("fast"), subscribe("slow")
        publish_numbers(0, 100, 0)
        finish(fast, take(fast, 100))
        held = take(slow, 100)
        assert len(take(subscribe(None), 100)) == 100, "a group has not finished them"
        finish(slow, held)
        assert 10 <= len(take(subscribe(None), 1)) <= 30

    def test_topic_without_groups_is_kept_from_the_start(
        self, bus: Bus, topic: str, subscribe: Open, publish_numbers: Callable[..., None]
    ) -> None:
        publish_numbers(0, 500, 0)
        finish(reader := subscribe(None), take(reader, 500))
        assert len(take(subscribe(None), 500)) == 500

    def test_closed_bus_wakes_and_refuses(self, bus: Bus, topic: str, subscribe: Open) -> None:
        subscription = subscribe("g")
        bus.close()
        with pytest.raises(Unavailable, match="closed"):
            subscription.poll(1, 30.0)
        with pytest.raises(Unavailable, match="closed"):
            bus.publish(topic, b"", b"")


def next_millisecond() -> None:
    """Later records are younger in Kafka's eyes, too."""
    now_ms = time.time_ns() // 10**6
    until(lambda: time.time_ns() // 10**6 > now_ms)


@pytest.mark.integration
class TestKafkaBus(BusContract):
    @pytest.fixture
    def bus(self, kafka_url: str) -> Iterator[Bus]:
        bus = KafkaBus.from_url(kafka_url)
        yield bus
        bus.close()

    def test_what_was_published_first_is_handed_out_first(self, bus: Bus, topic: str, subscribe: Open) -> None:
        """Not one partition after the other, as kafka-python reads them."""
        for number in range(5 * PARTITIONS):
            bus.publish(topic, b"k", str(number).encode(), partition=-number % PARTITIONS)
            next_millisecond()
        bus.flush()
        subscription = subscribe("g")
        assert isinstance(subscription, KafkaSubscription)
        until(lambda: len(subscription._read) == 5 * PARTITIONS)
        assert numbers(take(subscription, 5 * PARTITIONS)) == list(range(5 * PARTITIONS))

    def test_new_topics_are_waited_for(self, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy controller may answer that it goes on; leaders are elected afterwards."""
        create, describe = KafkaAdminClient.create_topics, KafkaAdminClient.describe_topics

        def goes_on(admin: KafkaAdminClient, *arguments: Any, **options: Any) -> Any:
            answer = create(admin, *arguments, **options)
            for created in answer["topics"]:
                created["error_code"] = kafka_errors.RequestTimedOutError.errno
            return answer

        def without_leaders(admin: KafkaAdminClient, topics: list[str]) -> Any:
            described = describe(admin, topics)
            for partition in (each for found in described for each in found["partitions"]):
                partition["leader_id"] = -1
            return described

        monkeypatch.setattr(KafkaAdminClient, "create_topics", goes_on)
        bus.ensure_topics({f"{topic}.soon": 1})
        monkeypatch.setattr(kafka, "_READY_S", 0.0)
        monkeypatch.setattr(KafkaAdminClient, "describe_topics", without_leaders)
        with pytest.raises(FlowUnavailable, match=rf"not ready after 0 s; .* `essp setup` .*{topic}\.late.*no leader"):
            bus.ensure_topics({f"{topic}.late": 1})

    def test_killed_member_hands_over(self, bus: Bus, kafka_url: str, topic: str, subscribe: Open) -> None:
        for number in range(20):
            bus.publish(topic, str(number).encode(), str(number).encode())
        bus.flush()
        code = (
            "import signal, warnings; warnings.simplefilter('ignore');"
            "from essp_common.bus.kafka import KafkaBus;"
            f"s = KafkaBus.from_url({kafka_url!r}).subscribe([{topic!r}], 'g');"
            "n = 0\nwhile n < 20: n += len(s.poll(100, 0.2))\nprint('held', flush=True); signal.pause()"
        )
        member = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert member.stdout is not None
        try:
            assert member.stdout.readline() == "held\n"
        finally:
            member.kill()
            member.wait()
            member.stdout.close()
        assert sorted(numbers(take(subscribe("g"), 20))) == list(range(20))

    def test_a_member_that_the_broker_does_not_let_in_says_so(
        self, bus: Bus, kafka_url: str, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker answers everything but JoinGroup."""
        monkeypatch.setattr(kafka_subscription, "Membership", partial(Membership, join_s=0.2))
        with Proxy(urlsplit(kafka_url).port or 0, rewrite=True) as proxy:
            proxy.ignore(JOIN_GROUP)
            url = f"kafka://127.0.0.1:{proxy.port}?session_timeout_ms=2000"
            with closing(KafkaBus.from_url(url)) as other, closing(other.subscribe([topic], "g")) as subscription:
                assert proxy.wait_for("ignored", 1, LONGEST_S)
                until(lambda: not subscription.poll(1, 0.05) and Kind.UNASSIGNED in other.troubles())
                assert "join group g" in other.troubles()[Kind.UNASSIGNED]
                assert subscription.partitions == 0
                proxy.heal()
                proxy.cut()  # it would wait for the answer for more than a minute
                proxy.heal()
                own(subscription, PARTITIONS)
                until(lambda: not other.troubles())

    @pytest.mark.parametrize("group", [None, "g"])
    def test_a_topic_that_was_deleted_is_told_of_until_it_is_back(
        self, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch, group: str | None
    ) -> None:
        """Kafka says so with each answer, Tansu does not."""
        monkeypatch.setattr(kafka_subscription, "_PROBE_IDLE_S", 0.1)
        monkeypatch.setattr(kafka_subscription, "Membership", partial(Membership, silent_s=0.1))
        with closing(bus.subscribe([topic], group)) as subscription:
            assert isinstance(subscription, KafkaSubscription)
            if group is not None:
                own(subscription, PARTITIONS)
            with monkeypatch.context() as deleted:
                deleted.setattr(subscription._consumer._cluster, "partitions_for_topic", lambda topic: None)
                with pytest.raises(TopicsGone, match=f"no topic {topic} any more; `essp setup` makes it again"):
                    until(lambda: bool(subscription.poll(1, 0.1)))
                until(lambda: "any more" in bus.troubles().get(Kind.BUS_SILENT, ""))
                assert "has not answered" not in bus.troubles()[Kind.BUS_SILENT]
            until(lambda: not bus.troubles())

    def test_a_member_that_leaves_while_another_one_joins_does_not_lock_it_out(self, subscribe: Open) -> None:
        """It leaves before its next heartbeat would have told it that the group is being dealt anew."""
        first = subscribe("g")
        own(first, PARTITIONS)
        second = subscribe("g")
        second.poll(1, 0.3)
        first.close()
        own(second, PARTITIONS)

    def test_a_member_that_leaves_before_it_has_joined_does_not_lock_others_out(
        self, kafka_url: str, topic: str, subscribe: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its request to join the group that is dealt anew is not answered before it has to go."""
        monkeypatch.setattr(kafka_subscription, "_CLOSE_TIMEOUT_MS", 500)
        with Proxy(urlsplit(kafka_url).port or 0, rewrite=True) as proxy:
            url = f"kafka://127.0.0.1:{proxy.port}?session_timeout_ms=4000"
            with closing(KafkaBus.from_url(url)) as other:
                first = other.subscribe([topic], "g")
                own(first, PARTITIONS)
                proxy.ignore(JOIN_GROUP)
                second = subscribe("g")
                assert proxy.wait_for("ignored", 1, LONGEST_S)
                first.close()
                own(second, PARTITIONS)

    def test_commit_does_not_overtake_a_lost_message(
        self, bus: Bus, kafka_url: str, topic: str, subscribe: Open
    ) -> None:
        """Work whose messages were lost is delivered again to the same subscriber, and counts when it was done again:
        not if only what was made before is called done late."""
        for number in range(5):
            bus.publish(topic, b"k", str(number).encode())
        bus.flush()
        losses = [Undelivered("lost")]

        def flush(timeout_s: float) -> None:
            if losses:
                raise losses.pop()

        client = KafkaOptions.from_url(kafka_url).consumer()
        subscription = KafkaSubscription(client, [topic], "g", None, flush, Rights())
        try:
            first = take(subscription, 5)
            finish(subscription, first)
            with pytest.raises(Unavailable, match="lost"):
                take(subscription, 1)
            again = take(subscription, 5)
            assert numbers(again) == numbers(first)
            finish(subscription, first)
            finish(subscription, [record.bare for record in again[:2]])
        finally:
            subscription.close()
        successor = subscribe("g")
        rest = take(successor, 3)
        assert numbers(rest) == numbers(first)[2:]
        finish(successor, rest)
        successor.close()
        assert bus.backlog(topic, "g") == 0

    def test_a_commit_that_failed_is_sent_again(self, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with closing(bus.subscribe([topic], "g")) as subscription:
            own(subscription, PARTITIONS)
            assert isinstance(subscription, KafkaSubscription)
            commit = subscription._consumer.commit_async
            failed: list[object] = []

            def fails_once(offsets: Mapping[TopicPartition, Any], callback: Callable[..., None]) -> None:
                if failed:
                    commit(offsets, callback=callback)
                else:
                    failed.append(offsets)
                    callback(offsets, kafka_errors.CommitFailedError())

            monkeypatch.setattr(subscription._consumer, "commit_async", fails_once)
            bus.publish(topic, b"", b"0")
            bus.flush()
            finish(subscription, take(subscription, 1))
            until(lambda: bus.backlog(topic, "g") == 0)
            assert failed

    @pytest.mark.processes
    @leaves_sockets
    def test_a_reader_that_has_met_a_defect_never_seems_to_wait_for_records(
        self, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def defect(*_: object, **__: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(kafka_subscription, "DEFECTS", 2)
        with closing(bus.subscribe([topic], "g")) as subscription:
            own(subscription, PARTITIONS)
            monkeypatch.setattr(KafkaConsumer, "poll", defect)
            with pytest.raises(TransientError, match="can't start new thread"):
                subscription.poll(1, LONGEST_S)
            for _ in range(3):
                with pytest.raises(EsspError, match="can't start new thread") as caught:
                    subscription.poll(1, LONGEST_S)
                assert not isinstance(caught.value, TransientError), "another try is none"

    @pytest.mark.parametrize("group", ["g", None])
    def test_a_reader_that_has_met_a_defect_once_reads_on(
        self,
        bus: Bus,
        topic: str,
        publish_numbers: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch,
        group: str | None,
    ) -> None:
        """By another consumer: from the last commit, and without a group from where it was."""
        publish_numbers(0, 2, 0)
        with closing(bus.subscribe([topic], group)) as subscription:
            finish(subscription, take(subscription, 2)[:1])
            assert isinstance(subscription, KafkaSubscription)
            monkeypatch.setattr(subscription._consumer, "poll", meet_a_defect)
            with pytest.raises(TransientError, match="what an answer lacks"):
                subscription.poll(1, LONGEST_S)
            publish_numbers(2, 3, 0)
            found: list[int] = []
            while 2 not in found:
                found += numbers(take(subscription, 1))
            assert found == ([1, 2] if group else [2])

    def test_a_publisher_that_has_met_a_defect_is_replaced(
        self, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(bus, KafkaBus)
        calls: list[tuple[Callable[[], None], str]] = [
            (partial(bus.publish, topic, b"", b""), "send"),
            (bus.flush, "flush"),
        ]
        for call, method in calls:
            bus.publish(topic, b"", b"")
            bus.flush()
            assert bus._publisher is not None
            worn = bus._publisher._producer
            monkeypatch.setattr(worn, method, meet_a_defect)
            with pytest.raises(FlowUnavailable, match="what an answer lacks"):
                call()
            bus.publish(topic, b"", b"")
            bus.flush()
            assert bus._publisher._producer is not worn

    def test_a_partition_that_is_taken_at_any_moment_is_no_defect(
        self, bus: Bus, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """kafka-python's own thread takes it, between a look at what is assigned and what is done with that."""
        with closing(bus.subscribe([topic], "g")) as subscription:
            own(subscription, PARTITIONS)
            assert isinstance(subscription, KafkaSubscription)
            taken, assigned = TopicPartition(topic, PARTITIONS), subscription._consumer.assignment
            looked = threading.Event()

            def assignment() -> set[TopicPartition]:
                looked.set()
                return set(assigned()) | {taken}

            subscription.gained([taken])
            monkeypatch.setattr(subscription._consumer, "assignment", assignment)
            assert looked.wait(LONGEST_S)
            bus.publish(topic, b"", b"0")
            bus.flush()
            assert numbers(take(subscription, 1)) == [0]

    def test_broker_that_goes_away_is_unavailable(self, tmp_path: Path) -> None:
        with kafka_broker(tmp_path) as server:
            bus = KafkaBus.from_url(f"{server.url}&connect_timeout_ms=500")
            bus.ensure_topics({"t": 1})
            bus.publish("t", b"", b"1")
            bus.flush()
        bus.publish("t", b"", b"2")
        with pytest.raises(Unavailable, match="flush"):
            bus.flush(0.2)
        with pytest.raises(Unavailable, match="close"):
            bus.close()


@leaves_sockets
def test_unreachable_broker_is_unavailable(unused_port: int) -> None:
    bus = KafkaBus.from_url(f"kafka://127.0.0.1:{unused_port}?connect_timeout_ms=200")
    with pytest.raises(Unavailable, match=f"create topics: no broker answers .*{unused_port}.*ESSP_BUS") as refused:
        bus.ensure_topics({"t": 1})
    assert "KafkaTimeoutError" not in str(refused.value)
    with pytest.raises(Unavailable, match="publish to t"):
        bus.publish("t", b"", b"")
    with pytest.raises(Unavailable, match="subscribe to t"):
        bus.subscribe(["t"], "g")
    with pytest.raises(Unavailable, match="backlog of t"):
        bus.backlog("t", "g")
    bus.flush()
    bus.close()
    with pytest.raises(Unavailable, match="closed"):
        bus.publish("t", b"", b"")


@pytest.mark.parametrize("url", ["kafka://", "kafka://h:1/db", "kafka://h:1?nonsense=1", "kafka://h:1?linger_ms=soon"])
def test_wrong_kafka_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="bus URL"):
        KafkaBus.from_url(url)

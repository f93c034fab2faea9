"""Rights and passwords that a broker takes away while a process runs, and those that were missing from the start.

The brokers of tests know no rights. What a client of kafka-python makes of a refusal is put where it would read one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.connection import KafkaConnection
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import InitProducerIdHandler

from essp_common.bus import kafka_clients, kafka_subscription
from essp_common.bus.kafka import KafkaBus
from essp_common.bus.kafka_clients import Undelivered
from essp_common.bus.kafka_subscription import KafkaSubscription
from essp_common.bus.port import Bus, MessageTooLarge, Subscription
from essp_common.errors import ConfigError, FlowUnavailable, NotFound
from essp_common.runtime.troubles import Kind
from tests.contract.bus_suite import take
from tests.harness.proxy import Proxy
from tests.harness.waiting import LONGEST_S, until

REMEDY = "check ESSP_BUS_USER.*what the broker lets this user do"


class Administrator:
    """Takes rights away, and gives them back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._taken: set[str] = set()

    def take(self, right: str) -> None:
        """From now on each client is refused this; a login where it connects anew."""
        self._taken.add(right)

    def give_back(self) -> None:
        """All of it."""
        self._taken.clear()

    def raises(self, right: str, where: type, method: str, error: Callable[[], Any]) -> None:
        """What reads the broker's answer finds an error instead."""
        kept = getattr(where, method)

        def read(*arguments: Any, **named: Any) -> Any:
            if right in self._taken:
                raise error()
            return kept(*arguments, **named)

        self._patch.setattr(where, method, read)

    def answers(self, right: str, where: type, method: str, code: int) -> None:
        """The last argument, the broker's answer, has this code instead."""
        kept = getattr(where, method)

        def read(*arguments: Any) -> Any:
            if right in self._taken:
                answer = SimpleNamespace(
                    error_code=code, base_offset=-1, log_start_offset=-1, error_message="", record_errors=[]
                )
                arguments = *arguments[:-1], answer
            return kept(*arguments)

        self._patch.setattr(where, method, read)

    def hides_topics(self, right: str) -> None:
        """Of topics that are asked for by name the broker says that they may not be seen."""
        kept = KafkaAdminClient.describe_topics

        def described(admin: KafkaAdminClient, topics: list[str] | None = None) -> Any:
            if right not in self._taken:
                return kept(admin, topics)
            code = kafka_errors.TopicAuthorizationFailedError.errno
            return [{"name": topic, "error_code": code, "partitions": []} for topic in topics or ()]

        self._patch.setattr(KafkaAdminClient, "describe_topics", described)


@pytest.fixture
def administrator(monkeypatch: pytest.MonkeyPatch) -> Administrator:
    monkeypatch.setattr(kafka_clients, "_DENIED_RETRY_S", 0.05)
    found = Administrator(monkeypatch)

    def no_group() -> Any:
        return kafka_errors.GroupAuthorizationFailedError("g")

    def no_topic() -> Any:
        return kafka_errors.TopicAuthorizationFailedError({"t"})

    found.raises("membership", ConsumerCoordinator, "_process_join_group_response", no_group)
    found.raises("membership", ConsumerCoordinator, "_handle_heartbeat_response", no_group)
    found.raises(
        "session", ConsumerCoordinator, "_process_join_group_response", kafka_errors.InvalidSessionTimeoutError
    )
    found.raises("commits", ConsumerCoordinator, "_handle_offset_commit_response", no_group)
    found.raises("reading", Fetcher, "_parse_fetched_data", no_topic)
    found.answers("writing", Sender, "_complete_batch", kafka_errors.TopicAuthorizationFailedError.errno)
    found.answers(
        "number", InitProducerIdHandler, "handle_response", kafka_errors.ClusterAuthorizationFailedError.errno
    )
    found.hides_topics("seeing")
    found.raises(
        "login",
        KafkaConnection,
        "_get_api_versions",  # after which a client logs in
        lambda: kafka_errors.SaslAuthenticationFailedError("wrong password"),
    )
    return found


@pytest.fixture
def proxy(kafka_url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(kafka_url).port or 0, rewrite=True) as proxy:
        yield proxy


@pytest.fixture
def bus(proxy: Proxy) -> Iterator[KafkaBus]:
    url = f"kafka://127.0.0.1:{proxy.port}?session_timeout_ms=2000&connect_timeout_ms=2000"
    with closing(KafkaBus.from_url(url)) as bus:
        yield bus


@pytest.fixture
def topic(bus: Bus) -> str:
    name = f"test.{uuid.uuid4().hex[:10]}"
    bus.ensure_topics({name: 1})
    return name


def goes_through(bus: Bus, topic: str, subscription: Subscription) -> bool:
    """One message is published, read and called done."""
    bus.publish(topic, b"", b"1")
    bus.flush(2.0)
    records = subscription.poll(10, 1.0)
    for record in records:
        subscription.done(record)
    return bool(records)


def tried(bus: Bus, topic: str, subscription: Subscription) -> bool:
    """As `goes_through`, of what waits until it does. Everything else but `FlowUnavailable` ends a process."""
    try:
        return goes_through(bus, topic, subscription)
    except FlowUnavailable:
        return False


def refused(bus: Bus, topic: str, subscription: Subscription) -> bool:
    """Whether a refusal is told of, after another try."""
    tried(bus, topic, subscription)
    return Kind.BUS_REFUSES in bus.troubles()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("membership", "read .* in group g: .*GroupAuthorizationFailedError"),
        ("commits", "commit of group g: .*GroupAuthorizationFailedError"),
        ("reading", "read .* in group g: .*TopicAuthorizationFailedError"),
        ("writing", "publish to test.*: .*TopicAuthorizationFailedError"),
        ("number", "publish to test.*: .*ClusterAuthorizationFailedError"),
        ("login", "log in: .*SaslAuthenticationFailedError: wrong password"),
    ],
)
def test_what_is_taken_away_is_waited_for_and_told_of(
    bus: KafkaBus, topic: str, proxy: Proxy, administrator: Administrator, right: str, said: str
) -> None:
    with closing(bus.subscribe([topic], "g")) as subscription:
        until(lambda: tried(bus, topic, subscription))
        assert not bus.troubles()
        administrator.take(right)
        if right == "number":  # a producer asks once
            assert bus._publisher is not None
            bus._publisher._worn = bus._publisher._producer
        if right == "membership":  # who is in stays so until the group is dealt anew
            assert isinstance(subscription, KafkaSubscription)
            subscription._consumer._coordinator.request_rejoin()
        if right == "login":  # who is logged in stays so
            proxy.cut()
            proxy.heal()
        until(lambda: refused(bus, topic, subscription))
        assert list(bus.troubles()) == [Kind.BUS_REFUSES]
        assert re.search(f"{said}.*{REMEDY}", bus.troubles()[Kind.BUS_REFUSES])
        administrator.give_back()
        until(lambda: tried(bus, topic, subscription) and not bus.troubles())


@pytest.mark.integration
def test_commits_that_fail_in_a_row_are_one_line(bus: KafkaBus, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(bus.subscribe([topic], "g")) as subscription:
        assert isinstance(subscription, KafkaSubscription)
        caplog.set_level("INFO", "essp_common.bus.kafka_subscription")
        for answer in (kafka_errors.RebalanceInProgressError(), kafka_errors.RebalanceInProgressError(), None) * 2:
            subscription._on_commit({}, answer)
    said = [r.message for r in caplog.records if r.name == kafka_subscription.__name__ and "commit" in r.message]
    assert [message.partition(":")[0] for message in said] == [
        "commit of group g failed and is sent again until it succeeds"
    ] * 2


@pytest.mark.integration
def test_a_session_timeout_that_the_broker_does_not_take_ends_the_process(
    bus: KafkaBus, topic: str, administrator: Administrator
) -> None:
    administrator.take("session")
    with (
        closing(bus.subscribe([topic], "g")) as subscription,
        pytest.raises(ConfigError, match=r"session_timeout_ms.*group\.min\.session\.timeout\.ms"),
    ):
        subscription.poll(1, LONGEST_S)


@pytest.mark.integration
@pytest.mark.parametrize("right", ["membership", "reading"])
def test_a_member_that_was_never_let_in_is_told_what_to_do(
    bus: KafkaBus, topic: str, administrator: Administrator, right: str
) -> None:
    """Its process ends."""
    bus.publish(topic, b"", b"1")
    bus.flush()
    administrator.take(right)
    with (
        closing(bus.subscribe([topic], "g")) as subscription,
        pytest.raises(ConfigError, match=f"AuthorizationFailedError.*{REMEDY}"),
    ):
        subscription.poll(1, LONGEST_S)


@pytest.mark.integration
@pytest.mark.parametrize("right", ["reading", "writing"])
@pytest.mark.parametrize("late", [False, True])
def test_right_that_other_threads_miss_ends_a_process_at_its_start(
    bus: KafkaBus, topic: str, administrator: Administrator, monkeypatch: pytest.MonkeyPatch, right: str, late: bool
) -> None:
    """Of who follows a topic, or reports, in a thread of its own. Later it is waited for."""
    own = f"{topic}.own"
    bus.ensure_topics({own: 1})
    with closing(bus.subscribe([own], "g")) as work:
        if late:
            monkeypatch.setattr(bus._rights, "_until_s", 0.0)
        bus.publish(topic, b"", b"1")
        if right == "reading":
            bus.flush()
        administrator.take(right)
        with closing(bus.subscribe([topic], None)) as follower:

            def told() -> bool:
                if right == "writing":
                    tried(bus, topic, follower)
                return Kind.BUS_REFUSES in bus.troubles()

            until(told)
            if late:
                assert not work.poll(1, 0.01)
            else:
                with pytest.raises(ConfigError, match=f"{topic}: .*TopicAuthorizationFailedError.*{REMEDY}"):
                    work.poll(1, LONGEST_S)


@pytest.mark.integration
def test_topics_that_a_user_may_not_see_are_not_taken_for_missing(
    bus: KafkaBus, topic: str, administrator: Administrator
) -> None:
    """A broker names them where it is asked for them, and leaves them out of the list of all."""
    administrator.take("seeing")
    asks: tuple[Callable[[], Any], ...] = (
        lambda: bus.ensure_topics({topic: 1}),
        lambda: bus.held(topic),
        lambda: bus.backlog(topic, "g"),
    )
    for ask in asks:
        with pytest.raises(FlowUnavailable, match=f"TopicAuthorizationFailedError.*{topic}.*{REMEDY}"):
            ask()
    assert list(bus.troubles()) == [Kind.BUS_REFUSES]
    with pytest.raises(ConfigError, match=REMEDY), closing(KafkaBus(bus._options)) as begun:
        begun.ensure_topics({topic: 1})
    with pytest.raises(NotFound, match=r"may not see it: `essp setup --acls`"):
        bus.subscribe(["unknown"], "g")
    administrator.give_back()
    for ask in asks:
        ask()
    assert not bus.troubles()


@pytest.mark.integration
def test_a_wrong_password_at_the_start_is_told_with_what_to_do(bus: KafkaBus, administrator: Administrator) -> None:
    administrator.take("login")
    with pytest.raises(ConfigError, match=f"create topics: .*SaslAuthenticationFailedError.*{REMEDY}"):
        bus.ensure_topics({"t": 1})
    administrator.give_back()
    bus.ensure_topics({"t": 1})
    assert not bus.troubles()


TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)


@pytest.mark.integration
@pytest.mark.parametrize("error", TOO_LARGE)
def test_a_message_that_only_the_broker_knows_to_be_too_large_is_at_fault_itself(
    bus: KafkaBus, topic: str, administrator: Administrator, error: type[kafka_errors.BrokerResponseError]
) -> None:
    """Not the rights of its publisher: no other try would end otherwise. What is published after it goes through, and
    what was published beside it was lost, and can be published again."""
    other = f"{topic}.other"
    bus.ensure_topics({other: 1})
    administrator.answers("size", Sender, "_complete_batch", error.errno)
    administrator.take("size")
    bus.publish(topic, b"", b"1")
    bus.publish(other, b"", b"2")
    with pytest.raises(
        MessageTooLarge, match=f"a message to ({topic}|{other}) has 1 bytes, more than the broker takes"
    ):
        bus.flush()
    administrator.give_back()
    with pytest.raises(Undelivered, match="1 messages were not delivered"):
        bus.flush()
    with closing(bus.subscribe([topic, other], None)) as subscription:
        for name in (topic, other):
            bus.publish(name, b"", b"3")
        bus.flush()
        found: set[str] = set()
        while found != {topic, other}:
            found |= {record.topic for record in take(subscription, 1) if record.value == b"3"}
    assert not bus.troubles()


@pytest.mark.integration
@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.OutOfOrderSequenceNumberError,
        kafka_errors.InvalidProducerEpochError,
        kafka_errors.UnknownProducerIdError,
        kafka_errors.InvalidTxnStateError,
        kafka_errors.InvalidRecordError,
        kafka_errors.TopicAuthorizationFailedError,
        kafka_errors.ClusterAuthorizationFailedError,
        kafka_errors.PolicyViolationError,
    ],
)
def test_publishing_goes_on_whatever_the_broker_has_refused_once(
    bus: KafkaBus, topic: str, administrator: Administrator, error: type[kafka_errors.BrokerResponseError]
) -> None:
    """kafka-python's producer does not leave some of the states that it gets into so."""
    administrator.answers("once", Sender, "_complete_batch", error.errno)
    administrator.take("once")
    bus.publish(topic, b"", b"1")
    with pytest.raises(Undelivered):
        bus.flush()
    administrator.give_back()
    bus.publish(topic, b"", b"2")
    bus.flush()
    assert not bus.troubles()

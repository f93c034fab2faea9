"""What a broker refuses because of its own limits, and what it takes away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from essp.doctor.finding import Level
from essp.doctor.kafka import examine
from essp_common import topics
from essp_common.bus.kafka import KafkaBus
from essp_common.bus.port import MessageTooLarge
from essp_common.bus.tenant import TenantBus
from essp_common.runtime.login import NOBODY
from tests.contract.bus_suite import take
from tests.harness.apache_kafka import ApacheKafka, admin_of
from tests.harness.refused import refused

pytestmark = pytest.mark.integration


@pytest.fixture
def bus(broker: ApacheKafka) -> Iterator[KafkaBus]:
    with closing(KafkaBus.from_url(broker.url)) as bus:
        yield bus


def test_message_that_is_too_large_for_its_topic_fails_alone(bus: KafkaBus, broker: ApacheKafka, unique: str) -> None:
    small, large = f"{unique}.small", f"{unique}.large"
    with admin_of(broker.url) as admin:
        admin.create_topics({small: {"num_partitions": 1, "configs": {"max.message.bytes": "1000"}}})
    bus.ensure_topics({large: 1})
    for _ in range(2):
        bus.publish(small, b"", bytes(5000))
        with pytest.raises(MessageTooLarge, match=rf"{small} has 5000 bytes.*max.message.bytes is 1000"):
            bus.flush()
    for topic in (large, small):
        bus.publish(topic, b"", b"after it")
    bus.flush()
    with closing(bus.subscribe([large, small], None)) as subscription:
        assert {record.topic: record.value for record in take(subscription, 2)} == dict.fromkeys(
            (large, small), b"after it"
        )
    assert bus.troubles() == {}


@pytest.mark.parametrize("timeout_ms", [4000, 1_800_001])
def test_session_that_the_broker_does_not_take_ends_the_process(
    broker: ApacheKafka, unique: str, timeout_ms: int
) -> None:
    url = f"{broker.url.partition('?')[0]}?session_timeout_ms={timeout_ms}"
    with closing(KafkaBus.from_url(url)) as bus:
        bus.ensure_topics({unique: 1})
        with closing(bus.subscribe([unique], unique)) as subscription, refused("", "range"):
            take(subscription, 1)
    found = next(found for found in examine(url, NOBODY, unique) if "session" in found.what)
    assert (found.level, "6000 to 1800000" in found.what) == (Level.FAIL, True)


def test_topics_that_drop_what_nobody_has_read_are_found(broker: ApacheKafka, unique: str) -> None:
    """By what the broker says of them; `essp setup` makes them right."""
    fixed = [topics.of_tenant(unique, topic) for topic in topics.FIXED]
    with closing(TenantBus(KafkaBus.from_url(broker.url), unique)) as bus:
        bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
    assert not [found for found in examine(broker.url, NOBODY, unique) if found.level is not Level.OK]
    with admin_of(broker.url) as admin:
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"}) for topic in fixed]
        )
    found = {
        found.what.split()[1]: found.level for found in examine(broker.url, NOBODY, unique) if "drops" in found.what
    }
    assert found == {topic: Level.FAIL if topic.endswith(topics.CONTROL) else Level.WARN for topic in fixed}

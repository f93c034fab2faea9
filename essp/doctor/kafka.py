"""Checks Kafka: is it reachable, do the topics have the partitions that ESSP needs, does a message come back?"""

from __future__ import annotations

import socket
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from essp.doctor.finding import CONNECT_S, Finding, fail, ok, unreachable, warn
from essp_common import topics
from essp_common.bus.kafka import KafkaBus
from essp_common.bus.kafka_clients import HIDDEN, connected, mapped
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.port import MAX_MESSAGE_BYTES, has_enough
from essp_common.bus.tenant import TenantBus
from essp_common.quantities import counted
from essp_common.runtime.login import Login

CHECK = "kafka"
ROUND_TRIP_S = 10.0
_CONNECT_MS = 4000
_RETENTION, _RETENTION_BYTES = "retention.ms", "retention.bytes"
_CLEANUP, _MESSAGE = "cleanup.policy", "max.message.bytes"
LIMITS = (_RETENTION, _RETENTION_BYTES, _CLEANUP, _MESSAGE)
_LEAST_RETENTION_MS = 24 * 3600 * 1000
_LEAST_RETENTION_BYTES = 64 * 2**20
_ENVELOPE_BYTES = 1000
"""What Kafka adds to a message, at most."""
_LEAST, _MOST = "group.min.session.timeout.ms", "group.max.session.timeout.ms"


def examine(url: str, login: Login, tenant: str = "", partitions: int = topics.DATA_PARTITIONS) -> Iterator[Finding]:
    """Check the bus at `url`, and a tenant's part of it. `partitions`: of its data topics. Raises `EsspError` if a
    check cannot continue."""
    options = KafkaOptions.from_url(url, login)
    deaf = [found for server in options.servers if (found := unreachable(CHECK, server, 9092, "ESSP_BUS"))]
    yield from deaf
    if len(deaf) == len(options.servers):
        return
    options = replace(options, connect_timeout_ms=_CONNECT_MS)
    if options.tls and (untrusted := _untrusted(options)):
        yield untrusted
        return
    yield from _topics(options, tenant, partitions)
    yield from _round_trip(options, tenant)


def _untrusted(options: KafkaOptions) -> Finding | None:
    """What is wrong with TLS, which kafka-python does not report."""
    server = urlsplit(f"//{options.servers[0]}")
    host, port = server.hostname or "", server.port or 9092
    context = ssl.create_default_context(cafile=options.ca or None)
    if options.cert:
        context.load_cert_chain(options.cert, options.key)
    try:
        with socket.create_connection((host, port), CONNECT_S) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        remedy = "name the authority that signed it (?ca=FILE), and use the host name that is in the certificate"
        return fail(CHECK, f"the certificate of {host}:{port} is not trusted: {error.verify_message}", remedy)
    except OSError as error:
        return fail(CHECK, f"{host}:{port}: no TLS ({error})", "use a port that speaks TLS, or kafka:// without it")
    return None


def _topics(options: KafkaOptions, tenant: str, partitions: int) -> Iterator[Finding]:
    wanted = {topics.of_tenant(tenant, topic): topics.partitions(topic, partitions) for topic in topics.FIXED}
    with mapped("ask Kafka"), connected(KafkaAdminClient, **options.client()) as admin:
        brokers = admin.describe_cluster()["brokers"]
        described = admin.describe_topics(list(wanted))
        refused = _refused_timeout(options, admin, str(brokers[0]["broker_id"]) if brokers else "")
        present = [topic["name"] for topic in described if topic["error_code"] == 0]
        limits = limits_of(admin, present)
    yield ok(CHECK, f"{counted(len(brokers), 'broker')} answer" + ("s" if len(brokers) == 1 else ""))
    if refused:
        yield refused
    found = {topic["name"]: len(topic["partitions"]) for topic in described if topic["error_code"] == 0}
    hidden = [topic["name"] for topic in described if topic["error_code"] == HIDDEN.errno]
    missing = [topic for topic in wanted if topic not in found and topic not in hidden]
    wrong = {topic: count for topic, count in found.items() if not has_enough(count, wanted[topic])}
    if hidden:
        remedy = "give it the rights that `essp setup --acls` shows"
        yield fail(CHECK, f"this user may not see the topics {', '.join(hidden)}", remedy)
    if missing:
        yield warn(
            CHECK,
            f"topics are missing: {', '.join(missing)}",
            "essp setup creates them; so do services, if they have the right",
        )
    for topic, count in wrong.items():
        needed = wanted[topic]
        remedy = "run `essp setup`, which adds the others" if count < needed else "delete the topic, and run essp setup"
        yield fail(CHECK, f"topic {topic} has {count} partitions, ESSP needs {needed}", remedy)
    yield from lossy(limits, topics.of_tenant(tenant, topics.CONTROL))
    if not (hidden or missing or wrong):
        yield ok(CHECK, f"topics {', '.join(wanted)} have the partitions they need")


Limits = tuple[int, int, str, int]
"""Of a topic: the values of `LIMITS`."""


def limits_of(admin: KafkaAdminClient, names: Sequence[str]) -> dict[str, Limits]:
    """The limits of topics; empty if this user may not ask, or the broker has none."""

    def values(config: Mapping[str, Mapping[str, Any]]) -> Limits:
        retention, size, cleanup, message = (config[limit]["value"] for limit in LIMITS)
        return int(retention), int(size), str(cleanup), int(message)

    try:
        asked = [ConfigResource(ConfigResourceType.TOPIC, name, list(LIMITS)) for name in names]
        found = admin.describe_configs(asked, config_filter="all")["topic"] if asked else {}
        return {name: values(found[name]) for name in names}
    except Exception:  # noqa: BLE001  the request needs a separate permission, and not every broker answers it
        return {}


def lossy(limits: Mapping[str, Limits], control: str) -> Iterator[Finding]:
    """Topics that drop messages before they are read, or do not take all that ESSP may send."""
    for name, (retention_ms, size_bytes, cleanup, message_bytes) in limits.items():
        if "compact" in cleanup:
            remedy = f"set {_CLEANUP} of the topic to delete"
            yield fail(CHECK, f"topic {name} is compacted: of messages with the same key it keeps the last one", remedy)
        if name == control and (retention_ms >= 0 or size_bytes >= 0):
            remedy = f"set {_RETENTION} and {_RETENTION_BYTES} of the topic to -1"
            yield fail(
                CHECK, f"topic {name} drops old commands: a new master would not know the jobs under way", remedy
            )
        elif 0 <= retention_ms < _LEAST_RETENTION_MS:
            yield warn(
                CHECK,
                f"topic {name} drops messages after {retention_ms / 3600_000:.2g} h, read or not: what waits longer, "
                "as in a paused job, is made again",
                f"set {_RETENTION} of the topic to {_LEAST_RETENTION_MS} or more",
            )
        elif 0 <= size_bytes < _LEAST_RETENTION_BYTES:
            yield warn(
                CHECK,
                f"topic {name} keeps {size_bytes} bytes of each partition, read or not: what exceeds them is made "
                "again",
                f"set {_RETENTION_BYTES} of the topic to {_LEAST_RETENTION_BYTES} or more",
            )
        if message_bytes < MAX_MESSAGE_BYTES + _ENVELOPE_BYTES:
            yield warn(
                CHECK,
                f"topic {name} takes messages of up to {message_bytes} bytes, and ESSP may send {MAX_MESSAGE_BYTES}: a "
                "job with a larger one fails",
                f"set {_MESSAGE} of the topic to {MAX_MESSAGE_BYTES + _ENVELOPE_BYTES} or more",
            )


def _refused_timeout(options: KafkaOptions, admin: KafkaAdminClient, broker: str) -> Finding | None:
    """A finding if the broker refuses our session timeout for groups; None if it accepts it or this user may not
    ask."""
    try:
        asked = ConfigResource(ConfigResourceType.BROKER, broker, [_LEAST, _MOST])
        found = admin.describe_configs([asked], config_filter="all")["broker"][broker]
        least, most = (int(found[name]["value"]) for name in (_LEAST, _MOST))
    except Exception:  # noqa: BLE001  the request needs a separate permission, and not every broker answers it
        return None
    if least <= options.session_timeout_ms <= most:
        return None
    return fail(
        CHECK,
        f"the broker takes session timeouts of {least} to {most} ms, and session_timeout_ms of ESSP_BUS is "
        f"{options.session_timeout_ms}: no worker could read",
        f"set session_timeout_ms in between, or {_LEAST} and {_MOST} of the broker",
    )


def _round_trip(options: KafkaOptions, tenant: str) -> Iterator[Finding]:
    """Publish a message and read it back, through the adapter that services use."""
    token = uuid.uuid4().bytes
    began = time.monotonic()
    with closing(TenantBus(KafkaBus(options), tenant)) as bus:
        bus.ensure_topics({topics.DOCTOR: topics.partitions(topics.DOCTOR)})
        with closing(bus.subscribe([topics.DOCTOR], None)) as subscription:
            bus.publish(topics.DOCTOR, b"doctor", token)
            bus.flush(ROUND_TRIP_S)
            while time.monotonic() - began < ROUND_TRIP_S:
                if any(record.value == token for record in subscription.poll(1000, 0.5)):
                    yield ok(CHECK, f"a message came back in {time.monotonic() - began:.2f} s")
                    return
    yield fail(
        CHECK,
        f"a message did not come back within {ROUND_TRIP_S:g} s",
        "look at the brokers' logs: partitions without a leader, or too few replicas in sync",
    )

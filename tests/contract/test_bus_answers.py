"""What a broker, or whatever answers in its place, may say: nothing of it ends a process or loses a message.

Between the client and a real broker stands a proxy that spoils each answer in one way for a while. All that a caller
sees are errors of ESSP that tell it to try again; afterwards the same bus works, with the same subscriptions.
"""

from __future__ import annotations

import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from essp_common.bus import kafka_options, kafka_publisher
from essp_common.bus.kafka import KafkaBus
from essp_common.errors import FlowUnavailable
from tests.harness.proxy import Proxy
from tests.harness.waiting import until
from tests.lanes import often

SPOILT = 8
"""So many answers are spoilt, at least: those of publishing, reading, heartbeats, commits, and what asks the broker."""

PAGE = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html><body>Bad Gateway</body></html>"


def framed(number: bytes, body: bytes) -> bytes:
    return struct.pack(">i", len(number) + len(body)) + number + body


def remade(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """An answer with the right number, of which the rest is changed."""
    return lambda answer: framed(answer[4:8], change(answer[8:]))


class Late:
    """Each answer comes in place of the next one."""

    def __init__(self) -> None:
        self._kept = b""

    def __call__(self, answer: bytes) -> bytes:
        late, self._kept = self._kept or framed(b"\0\0\0\0", b""), answer
        return late


WRONG: dict[str, Callable[[], Callable[[bytes], bytes]]] = {
    "half of it, and the end": lambda: lambda answer: answer[: len(answer) // 2] + PAGE * 20,
    "bytes without meaning": lambda: remade(lambda body: bytes((7 * n + 3) % 256 for n in range(len(body)))),
    "late": Late,
    "a page of a proxy": lambda: lambda _: PAGE,
    "the end": lambda: lambda _: b"",
    "zeros": lambda: remade(lambda body: bytes(len(body))),
    "nothing": lambda: remade(lambda _: b""),
    "another number": lambda: lambda answer: framed(b"\x7f\0\0\x01", answer[8:]),
    "twice": lambda: lambda answer: answer + answer,
}


@pytest.fixture
def proxy(kafka_url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(kafka_url).port or 0, rewrite=True) as proxy:
        yield proxy


@pytest.fixture
def bus(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaBus]:
    monkeypatch.setattr(kafka_options, "_REQUEST_TIMEOUT_MS", 1000)
    monkeypatch.setattr(kafka_publisher, "_DELIVERY_TIMEOUT_MS", 1500)
    url = f"kafka://127.0.0.1:{proxy.port}?session_timeout_ms=2000&connect_timeout_ms=500"
    with closing(KafkaBus.from_url(url)) as bus:
        yield bus


@pytest.mark.integration
@pytest.mark.parametrize("wrong", often(WRONG, 3))
def test_a_wrong_answer_is_an_error_that_passes(
    bus: KafkaBus, proxy: Proxy, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "kafka")
    topic = f"test.{uuid.uuid4().hex[:10]}"
    bus.ensure_topics({topic: 1})
    sent, stored, read, all_read = 0, set[bytes](), set[bytes](), set[bytes]()

    def tried(call: Callable[[], object]) -> bool:
        """Everything but `FlowUnavailable` fails the test."""
        try:
            call()
        except FlowUnavailable:
            return False
        return True

    with closing(bus.subscribe([topic], "g" + topic)) as member, closing(bus.subscribe([topic], None)) as reader:

        def publish() -> None:
            nonlocal sent
            sent += 1
            value = b"%d" % sent
            bus.publish(topic, b"", value)
            bus.flush(2.0)
            stored.add(value)

        def take() -> None:
            for record in member.poll(100, 0.2):
                read.add(record.value)
                member.done(record)

        def look() -> None:
            all_read.update(record.value for record in reader.poll(100, 0.2))

        def goes_through() -> bool:
            return all([tried(publish), tried(take), tried(look), tried(lambda: bus.held(topic))])

        until(lambda: goes_through() and bool(read) and bool(all_read))
        threads = {thread for thread in threading.enumerate() if thread.name.startswith("essp-kafka")}
        proxy.spoil(WRONG[wrong]())
        until(lambda: (goes_through(), proxy.faults["spoilt"] >= SPOILT)[1])
        proxy.heal()
        until(goes_through)
        until(lambda: (tried(take), tried(look)) == (True, True) and stored <= read and stored <= all_read)
        assert all(thread.is_alive() for thread in threads)
        until(lambda: goes_through() and not bus.troubles())

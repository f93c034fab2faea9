"""What the bus costs over Kafka: a message that is published and read, readers that have nothing to read.

Beside ESSP's bus, loops of a client library alone do the same with the same settings: kafka-python, which the bus uses,
and confluent-kafka, where it is installed. All speak to the broker of `essp servers`; where ESSP_TEST_KAFKA names a
release of Apache Kafka, its figures (`bus.kafka.`) come as well. Costs are CPU time of the client's process, so that
other load on the machine matters little; times there and back need a quiet machine.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.measure import Ratio
from essp.servers.servers import KafkaServer
from essp_common import topics
from essp_common.wiring import open_bus

_APACHE = "ESSP_TEST_KAFKA"
_PARTITIONS = topics.DATA_PARTITIONS
_VALUE = bytes(300)
_READERS = 5
_SETTLE_S = 8.0
"""After joining, a group deals partitions again, and clients look around."""
_SESSION_MS = 6000
_PUBLISH = Aim(most=1.5)
_READ = Aim(most=1.5)
_IDLE = Aim(most=0.05)

Loop = Callable[..., list[float]]
Results = dict[str, list[list[float]]]
"""Way -> what its loop returned in each process."""


def bus(scale: Scale) -> Iterator[Figure]:
    """CPU of a message and of idle readers, by ESSP's bus and by bare loops."""
    for prefix, server in _brokers():
        with tempfile.TemporaryDirectory() as folder, server(folder, session_timeout_ms=_SESSION_MS) as broker:
            yield from _figures(prefix, broker.url, scale)


def _brokers() -> Iterator[tuple[str, Any]]:
    yield "bus", KafkaServer
    if _APACHE in os.environ:
        yield "bus.kafka", import_module("tests.harness.apache_kafka").ApacheKafka


def _figures(prefix: str, url: str, scale: Scale) -> Iterator[Figure]:
    messages, idle_s, pings = (300, 1.0, 5) if scale.quick else (10_000, 15.0, 100)
    ways = ["essp", "kafka_python"] + (["confluent"] if find_spec("confluent_kafka") else [])
    publish: Results = {way: [] for way in ways}
    read: Results = {way: [] for way in ways}
    ping: Results = {way: [] for way in ways}
    for round_ in range(scale.rounds):
        for way in ways:
            topic = f"messages-{way}-{round_}"
            _ensure(url, topic)
            publish[way] += _in_processes(_LOOPS[way]["publish"], 1, url, topic, messages)
            read[way] += _in_processes(_LOOPS[way]["read"], 1, url, topic, messages)
    for name, costs, aim in (("publish", publish, _PUBLISH), ("read", read, _READ)):
        micros = {way: [1e6 * seconds / messages for (seconds,) in runs] for way, runs in costs.items()}
        ratios = [ours / bare for ours, bare in zip(micros["essp"], micros["kafka_python"], strict=True)]
        found = Ratio(statistics.median(ratios), min(ratios), max(ratios))
        detail = {f"{way}_us": round(min(values), 1) for way, values in micros.items()}
        yield Figure.of(f"{prefix}.{name}", found, aim, detail)
    _ensure(url, "idle")
    idle = {way: _in_processes(_LOOPS[way]["idle"], _READERS, url, "idle", idle_s) for way in ways}
    cores = {way: sum(seconds for (seconds,) in runs) / idle_s for way, runs in idle.items()}
    yield Figure(f"{prefix}.idle", cores["essp"], "cores", _IDLE, detail={way: round(c, 4) for way, c in cores.items()})
    for way in ways:
        _ensure(url, f"ping-{way}")
        ping[way] = _in_processes(_LOOPS[way]["ping"], 1, url, f"ping-{way}", pings)
    for name, share in (("p50", 0.5), ("p95", 0.95)):
        times = {way: 1000 * _quantile(found, share) for way, (found,) in ping.items()}
        yield Figure(f"{prefix}.there_and_back.{name}", times["essp"], "ms", detail=times)


def _ensure(url: str, topic: str) -> None:
    with ExitStack() as closing:
        bus = open_bus(url)
        closing.callback(bus.close)
        bus.ensure_topics({topic: _PARTITIONS})


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _in_processes(loop: Loop, count: int, *arguments: Any) -> list[list[float]]:
    """The results of a loop, run by `count` new processes at once. The last argument of a loop waits until all of them
    are ready."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=_run, args=(loop, end, arguments)) for _, end in ends]
    for process in processes:
        process.start()
    for _, end in ends:
        end.close()  # or this process would wait forever for one that has died
    for end, _ in ends:
        end.recv()
    for end, _ in ends:
        end.send("go")
    found = [end.recv() for end, _ in ends]
    for process in processes:
        process.join()
    return found


def _run(loop: Loop, end: Connection, arguments: Sequence[Any]) -> None:
    def all_ready() -> None:
        end.send("ready")
        end.recv()

    end.send(loop(*arguments, all_ready))


def _while_idle(
    poll: Callable[[], object], joined: Callable[[], object], seconds: float, ready: Callable[[], None]
) -> float:
    """Processor time of a member of a group that has nothing to read, over `seconds` from when its group is at rest."""

    def poll_for(duration_s: float) -> None:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            poll()

    while not joined():
        poll()
    poll_for(_SETTLE_S)
    ready()
    began = time.process_time()
    poll_for(seconds)
    return time.process_time() - began


def _times_there_and_back(
    publish: Callable[[int], None], poll: Callable[[], object], count: int, ready: Callable[[], None]
) -> list[float]:
    """Seconds from publishing a message to having read it, one message at a time."""

    def there_and_back(number: int) -> float:
        began = time.perf_counter()
        publish(number)
        while not poll():
            pass
        return time.perf_counter() - began

    there_and_back(0)
    ready()
    return [there_and_back(number) for number in range(count)]


# --- ESSP's bus ---


def _publish(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    bus = open_bus(url)
    bus.publish(topic, b"first", _VALUE)
    bus.flush()
    ready()
    began = time.process_time()
    for number in range(count):
        bus.publish(topic, b"key", _VALUE, number % _PARTITIONS)
    bus.flush()
    took = time.process_time() - began
    bus.close()
    return [took]


def _read(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    bus = open_bus(url)
    ready()
    subscription = bus.subscribe([topic], None)
    began, seen = time.process_time(), 0
    while seen < count:
        seen += len(subscription.poll(500, 0.5))
    took = time.process_time() - began
    subscription.close()
    bus.close()
    return [took]


def _idle(url: str, topic: str, seconds: float, ready: Callable[[], None]) -> list[float]:
    bus = open_bus(url)
    subscription = bus.subscribe([topic], "essp")
    took = _while_idle(lambda: subscription.poll(500, 0.5), lambda: subscription.partitions, seconds, ready)
    subscription.close()
    bus.close()
    return [took]


def _ping(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    bus = open_bus(url)
    subscription = bus.subscribe([topic], None)

    def publish(number: int) -> None:
        bus.publish(topic, b"key", b"%d" % number, number % _PARTITIONS)

    found = _times_there_and_back(publish, lambda: subscription.poll(500, 0.5), count, ready)
    subscription.close()
    bus.close()
    return found


# --- kafka-python alone ---


def _address(url: str) -> str:
    return urlsplit(url).netloc


def _bare_producer(url: str) -> Any:
    from kafka import KafkaProducer

    return KafkaProducer(
        bootstrap_servers=_address(url),
        enable_idempotence=True,
        acks="all",
        linger_ms=5,
        batch_size=64 * 1024,
        metrics_enabled=False,
    )


def _bare_consumer(url: str, group: str | None = None) -> Any:
    from kafka import KafkaConsumer

    return KafkaConsumer(
        bootstrap_servers=_address(url),
        group_id=group,
        session_timeout_ms=_SESSION_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        metrics_enabled=False,
    )


def _assigned(consumer: Any, topic: str) -> Any:
    from kafka import TopicPartition

    consumer.assign([TopicPartition(topic, number) for number in range(_PARTITIONS)])
    return consumer


def _bare_publish(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    producer = _bare_producer(url)
    producer.send(topic, _VALUE, b"first").get()
    ready()
    began = time.process_time()
    for number in range(count):
        producer.send(topic, _VALUE, b"key", partition=number % _PARTITIONS)
    producer.flush()
    took = time.process_time() - began
    producer.close()
    return [took]


def _bare_read(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    ready()
    consumer = _assigned(_bare_consumer(url), topic)
    began, seen = time.process_time(), 0
    while seen < count:
        seen += sum(map(len, consumer.poll(500, max_records=500).values()))
    took = time.process_time() - began
    consumer.close()
    return [took]


def _bare_idle(url: str, topic: str, seconds: float, ready: Callable[[], None]) -> list[float]:
    consumer = _bare_consumer(url, "kafka_python")
    consumer.subscribe([topic])
    took = _while_idle(lambda: consumer.poll(500), lambda: consumer.assignment(), seconds, ready)
    consumer.close()
    return [took]


def _bare_ping(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    producer, consumer = _bare_producer(url), _assigned(_bare_consumer(url), topic)

    def publish(number: int) -> None:
        producer.send(topic, b"%d" % number, b"key", partition=number % _PARTITIONS)

    found = _times_there_and_back(publish, lambda: consumer.poll(500), count, ready)
    consumer.close()
    producer.close()
    return found


# --- confluent-kafka alone ---


def _confluent(kind: str, url: str, **more: Any) -> Any:
    settings = {"bootstrap.servers": _address(url), **{name.replace("_", "."): value for name, value in more.items()}}
    return getattr(import_module("confluent_kafka"), kind)(settings)


def _confluent_publish(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    producer = _confluent("Producer", url, enable_idempotence=True, linger_ms=5)
    producer.produce(topic, _VALUE, b"first")
    producer.flush()
    ready()
    began = time.process_time()
    for number in range(count):
        producer.produce(topic, _VALUE, b"key", number % _PARTITIONS)
        producer.poll(0)
    producer.flush()
    return [time.process_time() - began]


def _confluent_consumer(url: str, topic: str) -> Any:
    consumer = _confluent("Consumer", url, group_id="none", enable_auto_commit=False, auto_offset_reset="earliest")
    place = import_module("confluent_kafka").TopicPartition
    consumer.assign([place(topic, number, 0) for number in range(_PARTITIONS)])
    return consumer


def _confluent_read(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    ready()
    consumer = _confluent_consumer(url, topic)
    began, seen = time.process_time(), 0
    while seen < count:
        seen += len(consumer.consume(500, 0.5))
    took = time.process_time() - began
    consumer.close()
    return [took]


def _confluent_idle(url: str, topic: str, seconds: float, ready: Callable[[], None]) -> list[float]:
    consumer = _confluent("Consumer", url, group_id="confluent", session_timeout_ms=_SESSION_MS)
    consumer.subscribe([topic])
    took = _while_idle(lambda: consumer.consume(500, 0.5), lambda: consumer.assignment(), seconds, ready)
    consumer.close()
    return [took]


def _confluent_ping(url: str, topic: str, count: int, ready: Callable[[], None]) -> list[float]:
    producer, consumer = _confluent("Producer", url, linger_ms=0), _confluent_consumer(url, topic)

    def publish(number: int) -> None:
        producer.produce(topic, b"%d" % number, b"key", number % _PARTITIONS)

    found = _times_there_and_back(publish, lambda: consumer.consume(1, 0.5), count, ready)
    consumer.close()
    return found


_LOOPS: Mapping[str, Mapping[str, Loop]] = {
    "essp": {"publish": _publish, "read": _read, "idle": _idle, "ping": _ping},
    "kafka_python": {"publish": _bare_publish, "read": _bare_read, "idle": _bare_idle, "ping": _bare_ping},
    "confluent": {
        "publish": _confluent_publish,
        "read": _confluent_read,
        "idle": _confluent_idle,
        "ping": _confluent_ping,
    },
}

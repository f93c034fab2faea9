"""What soaks run on: servers, a small labelled set on S3, the processes of ESSP, and its API as a client sees it that
has to live with a master that comes and goes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import redis
from kafka import KafkaProducer

from essp.catalog.build import BuildOptions, build
from essp.servers.servers import RedisServer, S3Server
from essp_common import topics
from essp_common.bus.kafka_clients import connected
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.port import Record
from essp_common.errors import Unavailable
from essp_common.job.status import JobStatus
from essp_common.wiring import Stores, open_bus
from tests.harness.brokers import kafka_broker
from tests.harness.waiting import LONGEST_S
from tests.soak.supervisor import Supervisor

BUCKET = "essp-soak"
TOKEN = "soak"
COUNTED = (topics.SEEDS, topics.PROGRESS, topics.DEADLETTER)
"""The topics that `verdict.traffic` counts."""
REDIS_BYTES = 64 * 2**20
_POLL_S = 0.5
_PUBLISH_S = 60.0
_LOOK_S = 0.05
DRAIN_S = 120.0
"""How long a process that is told to leave may take; seconds, on a machine that is not busy."""
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Servers:
    """Redis, a broker of the Kafka protocol, and S3, all of this run alone."""

    def __init__(self, folder: Path) -> None:
        self.redis = RedisServer(folder, maxmemory_bytes=REDIS_BYTES)
        self.kafka = kafka_broker(folder)
        self.s3 = S3Server(folder)

    @property
    def store(self) -> str:
        """The URL of the store that everything lies in."""
        return self.s3.store(BUCKET)

    def environment(self) -> dict[str, str]:
        """How processes find them."""
        return {
            **os.environ,
            **S3_ENVIRONMENT,
            "ESSP_BUS": self.kafka.url,
            "ESSP_CACHE": self.redis.url,
            "ESSP_STORES": json.dumps([self.store]),
            "ESSP_API_TOKEN": TOKEN,
            "ESSP_DECODER_PROCESSES": "1",
            "ESSP_STALL_S": "5",
            "ESSP_DRAIN_S": f"{DRAIN_S:g}",
        }

    def empty_redis(self) -> None:
        """Have Redis lose all it holds."""
        self.redis.execute("FLUSHALL")

    def publish(self, topic: str, record: bytes | None) -> None:
        """Put a record on a topic, as anybody may who reaches the broker."""
        producer = connected(KafkaProducer, **KafkaOptions.from_url(self.kafka.url).client())
        try:
            producer.send(topic, key=b"", value=record).get(_PUBLISH_S)
        finally:
            producer.close()

    def keys(self) -> int:
        """Keys in Redis."""
        return int(self.redis.execute("DBSIZE").strip()[1:])

    def value_bytes(self) -> int:
        """Bytes of all clips and features in Redis."""
        with redis.Redis.from_url(self.redis.url) as client, client.pipeline(transaction=False) as pipeline:
            for key in set(client.scan_iter()):
                pipeline.strlen(key)
            return sum(pipeline.execute())

    def used_bytes(self) -> int:
        """All memory that Redis takes up, of which most does not depend on how many clips there are."""
        with redis.Redis.from_url(self.redis.url) as client:
            return int(client.info("memory")["used_memory"])

    def records(self, names: Sequence[str], quiet_s: float = 1.5) -> Iterator[Record]:
        """All that the bus holds of these topics, in their order."""
        bus = open_bus(self.kafka.url)
        try:
            for name in names:  # one after the other, for none is to wait behind another
                subscription = bus.subscribe([name], group=None)
                heard = time.monotonic()
                while time.monotonic() - heard < quiet_s:
                    for record in subscription.poll(5000, _POLL_S):
                        heard = time.monotonic()
                        yield record
                subscription.close()
        finally:
            bus.close()

    def upload(self, videos: Path) -> str:
        """Put a labelled set into the store and make its catalog; the catalog's URI."""
        stores, root = Stores((self.store,)), f"s3://{BUCKET}"
        store = stores.under(root)
        for path in sorted(videos.rglob("*.*")):
            store.put_file(f"videos/{path.relative_to(videos)}", str(path))
        catalog = f"{root}/catalog.parquet"
        build(f"{root}/videos", catalog, (self.store,), BuildOptions("folders"))
        return catalog


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Running servers."""
    found = Servers(folder)
    before = {name: os.environ.get(name) for name in S3_ENVIRONMENT}
    os.environ.update(S3_ENVIRONMENT)
    try:
        with found.redis, found.kafka, found.s3:
            found.s3.create_bucket(BUCKET)
            yield found
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Client:
    """The API, as far as it answers."""

    def __init__(self, port: int) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/yaml"}
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=1.0)

    def start(self, text: str) -> bool:
        """Ask for a job; whether the master has it now, perhaps from an earlier question that was not answered."""
        try:
            return self._http.post("/v1/jobs", content=text, timeout=10.0).status_code in (202, 409)
        except httpx.TransportError:
            return False

    def status(self, job: str) -> JobStatus | None:
        """The job as it stands, if there is a master that knows it."""
        try:
            response = self._http.get(f"/v1/jobs/{job}")
        except httpx.TransportError:
            return None
        return JobStatus.model_validate_json(response.content) if response.status_code == 200 else None

    def close(self) -> None:
        """Close connections."""
        self._http.close()


def start_pools(supervisor: Supervisor, port: int, decoders: int = 2) -> list[str]:
    """Start all that no job has of its own; their names."""
    supervisor.start("master", "master", "--port", str(port))
    names = [f"decoder.{number}" for number in range(decoders)]
    for name in names:
        supervisor.start(name, "decoder")
    supervisor.start("extractor.flow", "extractor", "run", "--feature", "flow")
    supervisor.start("aggregator", "aggregator")
    return ["master", *names, "extractor.flow", "aggregator"]


def await_start(supervisor: Supervisor, names: Sequence[str]) -> None:
    """Wait until these processes have set up. Raises `Unavailable`."""

    def waiting() -> list[str]:
        return [name for name in names if b": started as " not in supervisor.log(name).read_bytes()]

    until(supervisor, lambda: bool(supervisor.unasked) or not waiting(), LONGEST_S)
    if names := waiting():
        stories = "\n".join(supervisor.unasked)
        raise Unavailable(f"{', '.join(names)} did not start within {LONGEST_S:g} s\n{stories}")


def until(supervisor: Supervisor, look: Callable[[], bool], timeout_s: float) -> bool:
    """Tend the processes until `look` finds what it looks for; False when time is up."""
    deadline = time.monotonic() + timeout_s
    while not look():
        if time.monotonic() >= deadline:
            return False
        supervisor.tend()
        time.sleep(_LOOK_S)
    return True

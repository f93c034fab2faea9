"""Whole journeys over real servers: every service is a process; videos, catalog and results are on S3.

The reference is the same job in this process over folders. Clips and weights have to be equal, bit for bit.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaProducer

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp.servers.servers import RedisServer, S3Server
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint import read_latest
from essp_common.artifacts.fused_model import open_model
from essp_common.bus.kafka_clients import connected
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.job.changes import next_run
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.port import ObjectStore
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores, open_bus
from tests.adversary.records import SAMPLES, TOPICS, Sent, foreign
from tests.adversary.storms import storm
from tests.conftest import BUCKET
from tests.harness import own_package
from tests.harness.brokers import kafka_broker
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import IssuedSeed, JobOptions, job_text, make_videos, seeds_in, weights_of
from tests.integration.fleet import Api, Fleet, Process

pytestmark = pytest.mark.integration

BUDGET = "256KiB"
"""Room for about 9 clips: without all of its trainers no job gets further."""
BATCH = 4
UPDATES = 3
"""Of an epoch: 12 clips, 4 at once."""
RATE = "trainers.rgb.optimizer.lr"
TOKEN = "a-secret"


@dataclass(frozen=True)
class Expected:
    """What every run of the job has to come to."""

    seeds: list[IssuedSeed]
    weights: dict[str, str]


@dataclass
class Deployment:
    """The deployment that the tests of this module share."""

    fleet: Fleet
    api: Api
    store: ObjectStore
    stores: Stores
    root: str
    """URI of the S3 prefix."""
    redis: RedisServer
    bus_url: str
    decoders: list[Process]

    def job(self, name: str, **options: Unpack[JobOptions]) -> str:
        """A job file of the small set, all of it on S3."""
        given: JobOptions = {"budget": BUDGET, **options}
        return job_text(name, output=self.output(name), catalog=f"{self.root}/catalog.parquet", **given)

    def output(self, name: str) -> str:
        return f"{self.root}/runs/{name}"

    def trainer(self, job: str, name: str) -> Process:
        return self.fleet.start("trainer", "--job", job, "--trainer", name)

    def completed(self, job: str, trainers: tuple[str, ...] = ("rgb", "flow")) -> JobStatus:
        """The job, once it is complete; every clip was trained once by every trainer, and the cache is empty."""
        status = self.api.until(job, "has ended", lambda status: status.state.ended)
        assert status.state is JobState.COMPLETED, status.reason
        for passed in status.phases:
            assert passed.done == {f"trainer.{name}": passed.clips for name in trainers}
        assert status.counts.failed == status.counts.skipped == 0
        self.empty_cache()
        return status

    def empty_cache(self) -> None:
        """Wait until nothing is in Redis any more."""
        self.fleet.until("Redis is empty", lambda: self.redis.execute("DBSIZE") == b":0\r\n" or None)

    def seeds(self, job: str, count: int) -> list[IssuedSeed]:
        """So many seeds that were issued for a job, in order of their indices."""
        bus = open_bus(self.bus_url)
        subscription = bus.subscribe([topics.SEEDS], group=None)
        seeds: list[IssuedSeed] = []

        def enough() -> bool | None:
            seeds.extend(seeds_in(subscription.poll(1000, 0.2), job))
            return len(seeds) >= count or None

        try:
            self.fleet.until(f"{count} seeds are on the bus", enough)
        finally:
            subscription.close()
            bus.close()
        return sorted(seeds)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    make_videos(root)
    return root


@pytest.fixture(scope="module")
def catalog(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of the catalog in a folder."""
    uri = f"file://{tmp_path_factory.mktemp('catalog')}/catalog.parquet"
    build(f"file://{videos}", uri, ("file:///",), BuildOptions("folders"))
    return uri


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the package of somebody else is installed; nothing of it stays imported."""
    yield own_package.installed(tmp_path_factory.mktemp("package"))
    sys.modules.pop(own_package.NAME, None)


def embedded(spec: JobSpec, settings: Settings = Settings()) -> Expected:  # noqa: B008
    """What comes of a job in this process, over folders and memory."""
    seeds: list[IssuedSeed] = []
    with Embedded(spec, settings) as job:
        subscription = job.adapters.bus.subscribe([topics.SEEDS], group=None)
        complete(job)
        while records := subscription.poll(1000, 0.0):
            seeds += seeds_in(records, spec.name)
        subscription.close()
    return Expected(sorted(seeds), weights_of(Stores(("file:///",)), spec.output))


@pytest.fixture(scope="module")
def expected(catalog: str, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    output = f"file://{tmp_path_factory.mktemp('embedded')}/run"
    return embedded(parse_spec(job_text("whole", output=output, catalog=catalog, budget=BUDGET)))


@pytest.fixture(scope="module")
def deployment(
    videos: Path,
    package: Path,
    s3_server: S3Server,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Deployment]:
    """Servers, the small set on S3, and every service but the trainers, which belong to a job. All have the package of
    somebody else on their path."""
    folder = tmp_path_factory.mktemp("fleet")
    prefix = uuid.uuid4().hex[:10]
    store_url = s3_server.store(BUCKET, prefix)
    stores, root = Stores((store_url,)), f"s3://{BUCKET}/{prefix}"
    store = stores.under(root)
    for path in sorted(videos.rglob("*.*")):
        store.put_file(f"videos/{path.relative_to(videos)}", str(path))
    redis_server.execute("FLUSHALL")
    with kafka_broker(folder) as kafka:
        environment = {
            "ESSP_BUS": kafka.url,
            "ESSP_CACHE": redis_server.url,
            "ESSP_STORES": json.dumps([store_url]),
            "ESSP_API_TOKEN": TOKEN,
            "ESSP_DECODER_PROCESSES": "1",
            "ESSP_READY_S": "0",  # some tests begin without the trainers
            "ESSP_CODE": json.dumps([own_package.NAME]),
            "PYTHONPATH": os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with Fleet(environment, folder) as fleet:
            master = fleet.start("master", "--port", "0")
            decoders = [fleet.start("decoder"), fleet.start("decoder")]
            fleet.start("extractor", "run", "--feature", "flow")
            fleet.start("aggregator")
            fleet.run("catalog", "build", f"{root}/videos", "--out", f"{root}/catalog.parquet")
            api = Api(fleet, master, TOKEN)
            yield Deployment(fleet, api, store, stores, root, redis_server, kafka.url, decoders)
            api.close()


def trained(status: JobStatus, trainer: str) -> int:
    """Clips, of all phases, that a trainer is done with."""
    return sum(passed.done[f"trainer.{trainer}"] for passed in status.phases)


def test_a_job_comes_to_the_same_over_real_servers(deployment: Deployment, expected: Expected, tmp_path: Path) -> None:
    file = tmp_path / "whole.yaml"
    file.write_text(deployment.job("whole"), encoding="utf-8")
    trainers = [deployment.trainer("whole", "rgb"), deployment.trainer("whole", "flow")]
    deployment.fleet.run("job", "start", str(file), "--server", deployment.api.url)
    status = deployment.completed("whole")

    assert status.counts.lost == status.counts.reissued == 0
    assert deployment.seeds("whole", status.counts.issued) == expected.seeds
    assert weights_of(deployment.stores, deployment.output("whole")) == expected.weights
    assert status.result is not None
    assert status.result.uri == f"{deployment.output('whole')}/{layout.MODEL_MANIFEST}"
    kept = {info.key for info in deployment.stores.under(deployment.output("whole")).list()}
    assert {layout.SPEC, layout.MODEL_MANIFEST} <= kept
    assert all(any(key.startswith(layout.latest(trainer)) for key in kept) for trainer in ("rgb", "flow"))
    _, model = open_model(deployment.stores, deployment.output("whole"))
    assert {f"{layout.MODEL}/{file}" for file in model.files} <= kept
    for trainer in trainers:
        deployment.fleet.ended(trainer)

    video = f"{deployment.root}/videos/test/left/0.mp4"
    answer = json.loads(deployment.fleet.run("predict", video, "--model", deployment.output("whole"), "--json"))
    assert [(found["video"], found["error"]) for found in answer["videos"]] == [(video, None)]
    assert answer["videos"][0]["class"] in ("left", "right")


@pytest.mark.lane("long")
def test_a_network_of_a_package_of_its_own_trains_by_name_and_by_path(
    deployment: Deployment, catalog: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rgb` by the name that the package registers, `flow` by its path."""

    def own(text: str) -> str:
        document = yaml.safe_load(text)
        document["trainers"]["rgb"] |= {"model": "tiny", "loss": "focal"}
        document["trainers"]["flow"] |= {"model": f"{own_package.NAME}:TINY", "loss": f"{own_package.NAME}:focal"}
        return json.dumps(document)

    trainers = [deployment.trainer("own", "rgb"), deployment.trainer("own", "flow")]
    assert deployment.api.start(own(deployment.job("own", epochs=1))) == 202
    deployment.completed("own")
    for trainer in trainers:
        deployment.fleet.ended(trainer)
    monkeypatch.syspath_prepend(str(package))
    here = job_text("own", output=f"file://{tmp_path}/run", catalog=catalog, budget=BUDGET, epochs=1)
    whole = embedded(parse_spec(own(here)), Settings(code=(own_package.NAME,)))
    assert weights_of(deployment.stores, deployment.output("own")) == whole.weights
    video = f"{deployment.root}/videos/test/left/0.mp4"
    answer = json.loads(deployment.fleet.run("predict", video, "--model", deployment.output("own"), "--json"))
    assert [found["error"] for found in answer["videos"]] == [None]
    assert answer["videos"][0]["class"] in ("left", "right")


def test_a_job_that_is_changed_and_whose_trainers_die_comes_to_what_it_would_have_been(
    deployment: Deployment, catalog: str, tmp_path: Path
) -> None:
    """Another rate, one more epoch, one more trainer; then two trainers are killed."""
    api, fleet, options = deployment.api, deployment.fleet, JobOptions(checkpoint=BATCH, budget=BUDGET)
    late = {"stream": "rgb", "batch_size": BATCH, "threads": 1, "augment.crop": 32, "augment.flip": False}
    more = {"epochs": 3, **{f"trainers.late.{field}": value for field, value in late.items()}}

    def change(**fields: object) -> None:
        fleet.run("job", "set", "changed", *(f"{f}={json.dumps(v)}" for f, v in fields.items()), "--server", api.url)

    assert api.start(deployment.job("changed", **options)) == 202
    rgb = deployment.trainer("changed", "rgb")
    # Without `flow` it comes to a halt by itself, before the end.
    api.until("changed", "has trained a batch", lambda status: trained(status, "rgb") >= BATCH)
    change(**{RATE: 0.001})
    change(**more)
    flow = deployment.trainer("changed", "flow")
    before = api.until("changed", "goes on with the third trainer", lambda s: len(s.trainers) == 3 and not s.reason)
    fleet.kill(flow)
    trainers = [deployment.trainer("changed", "late")]
    api.until("changed", "trains on", lambda status: trained(status, "rgb") > trained(before, "rgb"))
    fleet.kill(rgb)
    trainers += [deployment.trainer("changed", name) for name in ("rgb", "flow")]
    status = deployment.completed("changed", ("rgb", "flow", "late"))
    for trainer in trainers:
        fleet.ended(trainer)
    audit = json.loads(fleet.run("audit", deployment.output("changed"), "--json"))
    assert [found for found in audit["findings"] if not found["holds"]] == []

    (place,) = [change.places["rgb"] for change in status.changes]
    spec = parse_spec(job_text("changed", output=f"file://{tmp_path}/run", catalog=catalog, **options))
    optimizer = spec.trainers["rgb"].optimizer
    scheduled = {
        "unit": "updates",
        "steps": (place.epoch * UPDATES + place.clip // BATCH,),
        "gamma": 0.001 / optimizer.lr,
    }
    assert 0 < place.epoch * UPDATES + place.clip // BATCH < 3 * UPDATES, "within the training"
    rgb_spec = spec.trainers["rgb"].model_copy(update={"optimizer": optimizer.model_copy(update=scheduled)})
    spec = next_run(spec, more)
    spec = spec.model_copy(update={"trainers": {**spec.trainers, "rgb": rgb_spec}})
    assert weights_of(deployment.stores, deployment.output("changed")) == embedded(spec).weights


@pytest.mark.lane("long")
def test_a_paused_job_issues_nothing_and_goes_on_when_resumed(deployment: Deployment, expected: Expected) -> None:
    text, api = deployment.job("paused"), deployment.api
    assert api.start(text) == 202
    # Without trainers it comes to a halt by itself, so what is issued after this is issued by mistake.
    before = api.until("paused", "waits for credit", lambda s: s.credits.waiting and s.counts.decoded >= BATCH)
    assert api.ask("paused", "pause") == 200
    assert api.status("paused").state is JobState.PAUSED
    assert api.start(text) == 409
    trainers = [deployment.trainer("paused", "rgb"), deployment.trainer("paused", "flow")]
    # They train what was issued, and save when there is nothing more to do.
    paused = api.until("paused", "trainers save", lambda s: all(t.checkpoint is not None for t in s.trainers))
    assert paused.state is JobState.PAUSED
    assert paused.counts.issued == before.counts.issued < sum(passed.clips for passed in paused.phases)
    assert BATCH <= trained(paused, "rgb") <= paused.counts.issued

    assert api.ask("paused", "resume") == 200
    assert api.status("paused").state is not JobState.PAUSED
    status = deployment.completed("paused")
    assert deployment.seeds("paused", status.counts.issued) == expected.seeds
    assert weights_of(deployment.stores, deployment.output("paused")) == expected.weights
    for action in ("pause", "resume", "stop"):
        assert api.ask("paused", action) == 409
    assert api.ask("nowhere", "pause") == 404
    for trainer in trainers:
        deployment.fleet.ended(trainer)


@pytest.mark.lane("long")
def test_a_stopped_job_is_saved_and_goes_on_when_started_again(deployment: Deployment, expected: Expected) -> None:
    text, api = deployment.job("stopped"), deployment.api
    assert api.start(text) == 202
    trainer = deployment.trainer("stopped", "rgb")
    api.until("stopped", "has trained a batch", lambda status: trained(status, "rgb") >= BATCH)
    assert api.ask("stopped", "stop") == 200
    assert api.status("stopped").state is JobState.STOPPED
    deployment.fleet.ended(trainer)
    saved = read_latest(deployment.stores.under(deployment.output("stopped")), "rgb")
    assert saved is not None
    assert saved.position >= Position(0, BATCH)
    for action, code in (("pause", 409), ("resume", 409), ("stop", 200)):
        assert api.ask("stopped", action) == code
    trainers = [deployment.trainer("stopped", "rgb"), deployment.trainer("stopped", "flow")]
    deployment.empty_cache()

    assert api.start(text) == 202
    deployment.completed("stopped")
    assert weights_of(deployment.stores, deployment.output("stopped")) == expected.weights
    for trainer in trainers:
        deployment.fleet.ended(trainer)


@pytest.mark.lane("long")
def test_a_killed_decoder_and_a_killed_trainer_cost_nothing_but_time(
    deployment: Deployment, expected: Expected
) -> None:
    text, api, fleet = deployment.job("killed"), deployment.api, deployment.fleet
    flow = deployment.trainer("killed", "flow")
    assert api.start(text) == 202
    api.until("killed", "decoding has begun", lambda status: status.counts.decoded >= 1)
    fleet.kill(deployment.decoders.pop(0))
    # The other trainer is missing, so the job is not over however long this takes; nothing is saved yet.
    api.until("killed", "has trained a batch", lambda status: trained(status, "flow") >= BATCH)
    fleet.kill(flow)

    trainers = [deployment.trainer("killed", "rgb"), deployment.trainer("killed", "flow")]
    status = deployment.completed("killed")
    assert status.counts.reissued > 0  # of its batch, all but what it had not yet let go of when it died
    assert weights_of(deployment.stores, deployment.output("killed")) == expected.weights
    for trainer in trainers:
        fleet.ended(trainer)
    deployment.decoders.append(fleet.start("decoder"))


@pytest.mark.lane("long")
def test_records_of_nobody_on_kafka_disturb_no_job(deployment: Deployment, expected: Expected) -> None:
    """Also without a value, which only Kafka knows. A process that ended would fail the test."""

    @given(records=st.lists(foreign(SAMPLES), min_size=20, max_size=30))
    @storm(4, shrinks=False)
    def send(records: list[Sent]) -> None:
        for sent in records:
            producer.send(sent.topic, sent.value, sent.key, partition=sent.partition)

    with closing(connected(KafkaProducer, **KafkaOptions.from_url(deployment.bus_url).client())) as producer:
        for topic in TOPICS:
            producer.send(topic, None, b"key")
        send()
        producer.flush()
        trainers = [deployment.trainer("stormed", "rgb"), deployment.trainer("stormed", "flow")]
        assert deployment.api.start(deployment.job("stormed")) == 202
        for topic in TOPICS:
            producer.send(topic, None, b"key")
        send()
    deployment.completed("stormed")
    assert weights_of(deployment.stores, deployment.output("stormed")) == expected.weights
    for trainer in trainers:
        deployment.fleet.ended(trainer)
    deployment.fleet.run("audit", deployment.output("stormed"), "--json")

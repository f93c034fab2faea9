"""Whatever lies on the topics of a running deployment, its services live, and its jobs come out as ever."""

from __future__ import annotations

import json
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp.catalog.build import BuildOptions, build
from essp_common.cache.port import job_prefix
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import DeadLetter
from essp_common.runtime.metrics import REFUSED
from tests.adversary.deployment import Deployment
from tests.adversary.records import GROUPS, TOPICS, Sent, foreign, twisted
from tests.adversary.storms import storm
from tests.harness.command_line import essp
from tests.harness.journeys import job_text, make_videos, weights_of

pytestmark = pytest.mark.processes

AS_MUCH_MORE = 32 * 2**20
"""Bytes that a process may hold after a storm and did not before: caches of libraries, what is kept for people, and the
records themselves, which the bus in memory keeps. So this storm is as strong in every run."""


@dataclass(frozen=True)
class Place:
    """A deployment in which a job has come to its end undisturbed."""

    folder: Path
    deployment: Deployment
    seen: Mapping[str, Sequence[bytes]]
    """What that job has put on each topic."""
    weights: Mapping[str, str]

    def job(self, name: str) -> JobSpec:
        """The same job under another name."""
        return job_of(self.folder, name)

    def send(self, records: Sequence[Sent]) -> None:
        """Put records on the bus, and wait until they are read."""
        for sent in records:
            self.deployment.adapters.bus.publish(sent.topic, sent.key, sent.value, sent.partition)
        self.deployment.settle(GROUPS)

    def check_as_ever(self, name: str) -> None:
        """A job comes out as the undisturbed one did, its audit is clean, and nothing of it stays in the cache."""
        status = self.deployment.run(self.job(name))
        assert status.state is JobState.COMPLETED, status.reason
        assert weights_of(self.deployment.adapters.stores, status.output) == self.weights
        self.check_audit(name)

    def check_audit(self, name: str) -> None:
        """What a job promises was kept."""
        done = essp("audit", str(self.folder / name), "--json")
        assert done.exit_code == 0, done.output
        assert [found["holds"] for found in json.loads(done.stdout)["findings"]] == [True] * 7


def job_of(folder: Path, name: str) -> JobSpec:
    text = job_text(
        name, output=f"file://{folder / name}", catalog=f"file://{folder}/catalog.parquet", epochs=1, clips=8
    )
    return parse_spec(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("records")
    make_videos(folder / "videos")
    catalog = f"file://{folder}/catalog.parquet"
    build(f"file://{folder}/videos", catalog, ("file:///",), BuildOptions("folders"))
    with closing(Deployment(folder)) as deployment:
        bus = deployment.adapters.bus
        letter = DeadLetter(topic=TOPICS[0], message=b"x", reason="r", time_ms=1)
        bus.publish(TOPICS[-1], b"", letter.SerializeToString())
        with closing(bus.subscribe(list(TOPICS), None)) as subscription:
            status = deployment.run(job_of(folder, "calm"))
            assert status.state is JobState.COMPLETED, status.reason
            seen: dict[str, list[bytes]] = defaultdict(list)
            while records := subscription.poll(1000, 0.05):
                for record in records:
                    seen[record.topic].append(record.value)
        assert set(seen) == set(TOPICS)
        yield Place(folder, deployment, seen, weights_of(deployment.adapters.stores, status.output))


def refused() -> float:
    return float(sum(REFUSED.labels(topic)._value.get() for topic in TOPICS))


def test_records_of_nobody_disturb_no_job(place: Place) -> None:
    before = refused()

    @given(records=st.lists(foreign(place.seen), min_size=5, max_size=15))
    @storm(10, shrinks=False)
    def send(records: list[Sent]) -> None:
        place.send(records)

    with place.deployment.started(place.job("during")):
        send()
        status = place.deployment.ended("during")
    assert status.state is JobState.COMPLETED, status.reason
    assert weights_of(place.deployment.adapters.stores, status.output) == place.weights
    place.check_audit("during")
    assert refused() > before
    place.deployment.adapters.cache.purge(job_prefix("nobody"))
    place.check_as_ever("after")
    assert place.deployment.adapters.cache.usage().keys == 0


def test_odd_messages_of_a_job_harm_that_job_alone(place: Place) -> None:
    @given(records=st.lists(twisted(place.seen, "victim"), min_size=5, max_size=15))
    @storm(10, shrinks=False)
    def send(records: list[Sent]) -> None:
        place.send(records)

    with place.deployment.started(place.job("victim")):
        send()
    if not place.deployment.master.status("victim").state.ended:
        place.deployment.master.stop("victim")
    place.deployment.adapters.cache.purge(job_prefix("victim"))
    place.check_as_ever("beside")


def test_a_storm_leaves_no_memory_behind(place: Place) -> None:
    @given(records=st.lists(foreign(place.seen), min_size=5, max_size=10))
    @settings(storm(3, shrinks=False), max_examples=3)
    def send(records: list[Sent]) -> None:
        place.send(records)

    send()
    tracemalloc.start()
    try:
        send()
        before, _ = tracemalloc.get_traced_memory()
        send()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < AS_MUCH_MORE

"""The table of topics tells the truth: services publish to, and read, what it says and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from essp.embedded import composition
from essp.embedded.composition import Embedded
from essp_common import topics
from essp_common.bus.port import Bus, Subscription
from essp_common.runtime.config import Settings
from essp_common.wiring import Adapters
from essp_trainer import service as trainer
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete

pytestmark = pytest.mark.processes

Use = tuple[str, str, str]
"""Service, what it does, topic."""

ALLOWED = {
    (service, action, access.topic)
    for access in topics.ACCESS
    for action, services in (("publish", access.publish), ("read", access.read))
    for service in services
}
UNUSED = {("master", "publish", topics.CLIPS), ("master", "publish", topics.features(""))}
"""Where there is a clip at every index."""


class Watched:
    """A bus that notes how it is used."""

    def __init__(self, bus: Bus, service: str, seen: set[Use]) -> None:
        self._bus = bus
        self._service = service
        self._seen = seen

    def publish(self, topic: str, *message: Any, **options: Any) -> None:
        self._seen.add((self._service, "publish", row(topic)))
        self._bus.publish(topic, *message, **options)

    def subscribe(self, names: Sequence[str], *group: Any, **options: Any) -> Subscription:
        self._seen |= {(self._service, "read", row(topic)) for topic in names}
        return self._bus.subscribe(names, *group, **options)

    def begin_groups(self, groups: Mapping[str, str]) -> None:
        self._seen |= {(self._service, "read", row(topic)) for topic in groups.values()}
        self._bus.begin_groups(groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)


def row(topic: str) -> str:
    features = topics.features("")
    return features if topic.startswith(features) else topic


def watched(build: Callable[..., Any], place: int, service: str, seen: set[Use], *arguments: Any) -> Any:
    given = list(arguments)
    adapters: Adapters = given[place]
    bus: Any = Watched(adapters.bus, service, seen)
    given[place] = replace(adapters, bus=bus)
    return build(*given)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[Use]:
    """What the services of a job do with the bus."""
    found: set[Use] = set()
    for service in ("master", "decoder", "extractor", "aggregator"):
        build = getattr(composition, f"build_{service}")
        monkeypatch.setattr(composition, f"build_{service}", partial(watched, build, 0, service, found))
    monkeypatch.setattr(trainer, "build", partial(watched, trainer.build, 1, "trainer", found))
    return found


def test_services_use_the_topics_as_the_table_says(make_job: MakeJob, seen: set[Use]) -> None:
    with Embedded(make_job(epochs=1), Settings()) as job:
        complete(job)
    assert seen - ALLOWED == set()
    flow = {topics.SEEDS, topics.CLIPS, topics.features(""), topics.PROGRESS}
    own = {use for use in ALLOWED if use[0] in {"master", "decoder", "extractor", "aggregator", "trainer"}}
    assert {use for use in own if use[2] in flow} - seen == UNUSED

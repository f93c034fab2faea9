"""Three brokers with passwords and rights: who is let in, and jobs while brokers restart, leave and die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp.servers.servers import S3Server
from essp_common import topics
from essp_common.bus.kafka import KafkaBus
from essp_common.errors import ConfigError, FlowUnavailable
from essp_common.runtime.login import Login
from essp_common.wiring import Adapters
from essp_master.lifecycle import runner
from essp_master.service import Master
from tests.faults.conftest import learn
from tests.faults.deployment import Run
from tests.harness.apache_kafka import ApacheCluster, admin_of
from tests.harness.waiting import until
from tests.kafka.deployment import KafkaDeployment, deployed, password_of, secure

pytestmark = pytest.mark.integration

FEW_CLIPS_S = 0.15
"""How long the consumers take over a clip, so that a job is in the midst of it for a while."""
AWAY_S = 3.0
"""How long a publisher waits for brokers that are away."""


@pytest.fixture(scope="module")
def secured(cluster: ApacheCluster) -> ApacheCluster:
    secure(cluster, {f"essp-{user}": password_of(user) for user in (*topics.SERVICES, "setup")})
    return cluster


@pytest.fixture(scope="module")
def deployment(
    secured: ApacheCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaDeployment]:
    """All services, each as its own user."""
    folder: Path = tmp_path_factory.mktemp("kafka")
    with deployed(
        folder, secured.brokers[0], s3_server, secured.login_url, "aggregator", "predictor", secured=True
    ) as found:
        yield found


@pytest.fixture(scope="module")
def consumers(deployment: KafkaDeployment) -> Iterator[Adapters]:
    with closing(deployment.adapters("trainer")) as adapters:
        yield adapters


@pytest.fixture(scope="module")
def master(deployment: KafkaDeployment) -> Iterator[Master]:
    with closing(deployment.adapters("master")) as adapters, deployment.master(adapters) as master:
        yield master


@pytest.fixture(scope="module")
def undisturbed(deployment: KafkaDeployment, master: Master, consumers: Adapters) -> None:
    learn(deployment, Run(deployment, master, consumers, deployment.spec("undisturbed")))


@pytest.fixture
def under_way(
    deployment: KafkaDeployment, master: Master, consumers: Adapters, undisturbed: None, unique: str
) -> Iterator[Run]:
    """A job that has begun."""
    run = Run(deployment, master, consumers, deployment.spec(unique), hold_at=3).held()
    for consumer in run.taken:
        run.pace(consumer, FEW_CLIPS_S)
    yield run
    run.close()


@pytest.mark.parametrize(
    ("user", "password", "sasl", "said"),
    [
        ("essp-decoder", "guessed", "SCRAM-SHA-512", "SaslAuthenticationFailedError.*ESSP_BUS_USER, its password"),
        ("nobody", "pw-decoder", "SCRAM-SHA-512", "SaslAuthenticationFailedError.*ESSP_BUS_USER, its password"),
        ("essp-decoder", "pw-decoder", "SCRAM-SHA-256", "the broker does not take sasl=SCRAM-SHA-256"),
        ("essp-decoder", "pw-decoder", "PLAIN", "the broker does not take sasl=PLAIN"),
    ],
)
def test_wrong_login_is_told(secured: ApacheCluster, user: str, password: str, sasl: str, said: str) -> None:
    url = f"{secured.login_url.partition('?')[0]}?sasl={sasl}&connect_timeout_ms=2000"
    with closing(KafkaBus.from_url(url, Login(user, password))) as bus:
        with pytest.raises(ConfigError, match=said) as raised:
            bus.held(topics.SEEDS)
        assert password not in str(raised.value)


def test_who_may_not_begin_and_delete_groups_goes_without(secured: ApacheCluster, unique: str) -> None:
    """As a master whose rights are those of an earlier release."""
    login = Login("essp-decoder", password_of("decoder"))
    with closing(KafkaBus.from_url(secured.login_url, login)) as bus:
        bus.begin_groups({unique: topics.CLIPS})
        bus.delete_groups([unique])
        assert not bus.troubles()


def test_job_needs_no_other_rights_and_leaves_no_groups(
    deployment: KafkaDeployment,
    secured: ApacheCluster,
    master: Master,
    consumers: Adapters,
    undisturbed: None,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All services are at work, each as its own user."""
    monkeypatch.setattr(runner, "_GROUPS_S", 0.5)
    run = Run(deployment, master, consumers, deployment.spec(unique))
    try:
        run.finish()
    finally:
        run.close()
    with admin_of(secured.url) as admin:
        until(lambda: not any(unique in group["group_id"] for group in admin.list_groups()))
    assert all(process.popen.poll() is None for process in deployment.processes)
    assert not [word for process in deployment.processes if (word := refusal_in(process.log))]


def refusal_in(log: Path) -> str:
    """The line of a log that tells of a refusal."""
    return next((line for line in log.read_text("utf-8").splitlines() if "AuthorizationFailedError" in line), "")


def test_brokers_restart_one_after_the_other(secured: ApacheCluster, under_way: Run) -> None:
    under_way.go()
    for broker in secured.brokers:
        broker.end()
        secured.start([broker])
    under_way.finish()


@pytest.mark.parametrize("topic", [topics.PROGRESS, topics.CONTROL])
def test_leader_that_dies_is_done_without(secured: ApacheCluster, under_way: Run, topic: str) -> None:
    lost = secured.leader(topic)
    lost.kill()
    try:
        under_way.finish()
    finally:
        secured.start([lost])


def test_two_of_three_brokers_are_away_for_a_while(secured: ApacheCluster, under_way: Run, unique: str) -> None:
    """Nothing can be stored meanwhile, and nothing is lost."""
    lost = secured.brokers[1:]
    with closing(KafkaBus.from_url(secured.url)) as bus:
        bus.ensure_topics({unique: 1})
        bus.publish(unique, b"", b"before")
        bus.flush()
        for broker in lost:
            broker.kill()
        under_way.go()
        bus.publish(unique, b"", b"meanwhile")
        with pytest.raises(FlowUnavailable):
            bus.flush(AWAY_S)
        secured.start(lost)
        bus.flush()
    under_way.finish()

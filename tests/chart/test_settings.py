"""What the chart tells the processes is what they understand: every variable, every value, every argument."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from essp.cli.commands import SECTIONS
from essp.cli.main import app
from essp_common import topics
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.runtime import ids
from essp_common.runtime.login import NOBODY, Login
from essp_common.wiring import Stores
from tests.chart.rendering import (
    CASES,
    Helm,
    Object,
    Refused,
    container_of,
    environment_of,
    labels_of,
    named,
    of_kind,
    pod_of,
    pool_of,
    workloads,
)
from tests.harness.command_line import essp
from tools import chart_reference as reference
from tools.chart_reference import CHART, SET_BY_CHART, SETTINGS
from tools.written import drifted


def settings_of(workload: Object, objects: list[Object], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings that a workload's process would read."""
    component = labels_of(workload)["app.kubernetes.io/component"]
    for name in [name for name in os.environ if name.startswith("ESSP_")]:
        monkeypatch.delenv(name)
    environment = environment_of(workload, objects)
    for name, value in environment.items():
        if name.startswith("ESSP_"):
            monkeypatch.setenv(name, value)
    kind = SETTINGS[{"task": "master", "servers": "common"}.get(component, component)]
    known = {f"ESSP_{field.upper()}" for field in kind.model_fields}
    assert {name for name in environment if name.startswith("ESSP_")} <= known
    return kind()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_process_understands_its_environment(helm: Helm, case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = helm.render(case)
    for workload in processes(objects):
        settings = settings_of(workload, objects, monkeypatch)
        assert settings.log_format == "auto", "JSON, as there is no terminal"
        Stores(settings.stores)
        url = re.sub("&password_file=[^&]+", "", re.sub("(ca|cert|key)=[^&]+&", "", settings.bus))
        KafkaOptions.from_url(url, Login(settings.bus_user, "s3cret") if settings.bus_user else NOBODY)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_process_understands_its_arguments(helm: Helm, case: Path) -> None:
    for workload in processes(helm.render(case)):
        understood(container_of(workload)["args"])


def test_commands_of_the_demonstration_are_understood() -> None:
    script = (CHART / "files" / "demo.sh").read_text(encoding="utf-8")
    commands = [shlex.split(line)[1:] for line in script.splitlines() if line.startswith("essp ")]
    assert commands
    for command in commands:
        understood(command)


def processes(objects: list[Object]) -> list[Object]:
    """The workloads whose process is a service or a command; the demonstration's is a script of commands."""
    return [workload for workload in workloads(objects) if workload["kind"] != "CronJob"]


def understood(args: list[str]) -> None:
    """The command line takes these arguments."""
    if len(args) == 1:
        assert any(args[0] in section for section in SECTIONS.values())
        return
    command = typer.main.get_command(app)
    context = command.make_context("essp", list(args))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, left = command.resolve_command(context, rest)
        context = command.make_context(name, left, parent=context)
    assert not context.args


def test_servers(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(**values: Any) -> Any:
        objects = helm.render(**values)
        return settings_of(pool_of(objects, "decoder"), objects, monkeypatch)

    settings = read(kafka={"servers": ["a:9092", "b:9093"]}, s3={"buckets": ["videos", "results/runs"]})
    assert settings.bus == "kafka://a:9092,b:9093"
    assert settings.cache == "redis://redis:6379/0"
    options = "endpoint=http://s3:7070&region=us-east-1"
    assert settings.stores == (f"s3://videos?{options}", f"s3://results/runs?{options}")
    assert read(s3={"endpoint": "", "region": ""}).stores == ("s3://essp",)
    assert read(redis={"mode": "cluster"}).cache == "redis+cluster://redis:6379"
    assert read(redis={"tls": True, "database": 3}).cache == "rediss://redis:6379/3"
    assert read(redis={"mode": "cluster", "tls": True}).cache == "rediss+cluster://redis:6379"


def files_of(workload: Object) -> dict[str, tuple[str, str]]:
    """Path in the container -> Secret and key, of certificates and passwords."""
    mounts = {mount["name"]: mount["mountPath"] for mount in container_of(workload)["volumeMounts"]}
    return {
        f"{mounts[volume['name']]}/{item['path']}": (source["secret"]["name"], item["key"])
        for volume in pod_of(workload)["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        for item in source["secret"]["items"]
    }


def test_kafka_with_tls_and_a_login(helm: Helm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    objects = helm.render(next(case for case in CASES if case.stem == "secrets-values"))
    for workload in workloads(objects):
        settings = settings_of(workload, objects, monkeypatch)
        named = ("ca", "cert", "key", "password_file")
        files = {option: re.findall(rf"[?&]{option}=([^&]+)", settings.bus)[0] for option in named}
        assert {option: files_of(workload)[path] for option, path in files.items()} == {
            "ca": ("kafka-ca", "ca.crt"),
            "cert": ("kafka-client", "tls.crt"),
            "key": ("kafka-client", "tls.key"),
            "password_file": ("essp-kafka", "password"),
        }
        (tmp_path / "file").write_text("s3cret\n")
        url = settings.bus
        for path in files.values():
            url = url.replace(path, str(tmp_path / "file"))
        options = KafkaOptions.from_url(url, settings.bus_login)
        assert (options.servers, options.tls, options.sasl) == (("kafka:9093",), True, "SCRAM-SHA-512")
        assert options.login.user == "essp"
        assert options.password() == "s3cret"


def test_each_service_has_the_user_in_kafka_whose_rights_are_printed(helm: Helm) -> None:
    """And sees no other password: also what the master makes, the job that makes topics, and `helm test`."""
    login = {"sasl": "SCRAM-SHA-512", "user": "essp-{service}", "existingSecret": "logins", "secretKey": "{service}"}
    objects = helm.render(CHART / "ci" / "control-plane-values.yaml", kafka=login)
    users = {environment_of(workload, objects)["ESSP_BUS_USER"] for workload in workloads(objects)}
    assert users == {
        f"essp-{name}" for name in ("aggregator", "decoder", "extractor", "master", "people", "setup", "trainer")
    }
    assert users <= set(re.findall(r"User:(\S+)", essp("setup", "--acls").stdout))
    for workload in workloads(objects):
        service = environment_of(workload, objects)["ESSP_BUS_USER"].removeprefix("essp-")
        assert files_of(workload)["/etc/essp/kafka/password"] == ("logins", service)
        assert labels_of(workload)["app.kubernetes.io/component"] in (service, "task")


def test_redis_and_s3_with_authorities_of_their_own(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = {"server": "redis:6379", "tls": True, "caSecret": "redis-ca", "clientSecret": "redis-client"}
    redis |= {"user": "essp", "passwordSecret": "redis-login", "passwordKey": "secret"}
    objects = helm.render(redis=redis, s3={"caSecret": "s3-ca"})
    for workload in workloads(objects):
        given, files = environment_of(workload, objects), files_of(workload)
        server, _, query = given["ESSP_CACHE"].partition("?")
        assert server == "rediss://essp@redis:6379/0"
        options = dict(part.split("=") for part in query.split("&"))
        assert {option: files[path] for option, path in options.items()} == {
            "ssl_ca_certs": ("redis-ca", "ca.crt"),
            "ssl_certfile": ("redis-client", "tls.crt"),
            "ssl_keyfile": ("redis-client", "tls.key"),
            "password_file": ("redis-login", "secret"),
        }
        assert files[given["AWS_CA_BUNDLE"]] == ("s3-ca", "ca.crt")
    with_url = helm.render(redis={"existingSecret": "essp-redis", "caSecret": "redis-ca"})
    assert files_of(pool_of(with_url, "decoder"))["/etc/essp/redis/ca.crt"] == ("redis-ca", "ca.crt")


def test_credentials_come_from_secrets(helm: Helm) -> None:
    seen = set()
    objects = helm.render(next(case for case in CASES if case.stem == "secrets-values"))
    for workload in workloads(objects):
        environment = environment_of(workload, objects)
        assert "ESSP_BUS_PASSWORD" not in environment  # a file, since it may change
        assert environment["ESSP_CACHE"] == "<essp-redis/url>"
        assert "AWS_ACCESS_KEY_ID" not in environment  # the role of the service account
        name, files = workload["metadata"]["name"], files_of(workload)
        if name == "video-doctor":  # a caller, and gone within seconds
            assert environment["ESSP_API_TOKEN"] == "<essp-api/token>"
        else:
            assert "ESSP_API_TOKEN" not in environment
        if file := environment.get("ESSP_API_TOKEN_FILE"):
            seen.add(name)
            assert files[file] == ("essp-api", "token")
    assert seen == {"video-master"}
    environment = environment_of(pool_of(objects := helm.render(), "decoder"), objects)
    assert environment["AWS_SECRET_ACCESS_KEY"] == "<essp-s3/AWS_SECRET_ACCESS_KEY>"


def test_with_files_alone_no_environment_holds_a_secret(helm: Helm) -> None:
    """But that of `helm test`, which is a caller."""
    redis = {"server": "redis:6379", "user": "essp", "passwordSecret": "redis-login"}
    s3 = {"buckets": ["videos"], "existingSecret": "", "credentialsSecret": "essp-s3"}
    objects = helm.render(redis=redis, s3=s3, controlPlane={"ranks": 1})
    for workload in workloads(objects):
        environment, files = environment_of(workload, objects), files_of(workload)
        assert files[environment["AWS_SHARED_CREDENTIALS_FILE"]] == ("essp-s3", "credentials")
        if workload["metadata"]["name"].endswith("-doctor"):
            continue
        assert not [value for value in environment.values() if re.fullmatch(r"<.*/(password|token|url|AWS_.*)>", value)]
    with pytest.raises(Refused, match=r"s3: credentialsSecret, .* not both"):
        helm.render(s3=s3 | {"existingSecret": "essp-s3"})


def test_values_arrive_as_they_are(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large numbers without an exponent, fractions, lists; a pool's own before those of all."""
    objects = helm.render(next(case for case in CASES if case.stem == "secrets-values"))
    decoder = settings_of(pool_of(objects, "decoder"), objects, monkeypatch)
    assert (decoder.decoder_clip_bytes, decoder.decoder_timeout_s) == (4294967296, 60.5)
    assert (decoder.drain_s, decoder.log_level) == (120, "DEBUG")
    assert settings_of(pool_of(objects, "aggregator"), objects, monkeypatch).drain_s == 60
    images = ["registry.example.com/a/", "registry.example.com/b/"]
    teams = {"vision": {"budget": "8GiB", "jobs": 3, "weight": 2}, "speech": {}}
    objects = helm.render(pools={"master": {"settings": {"images": images, "teams": teams, "queue_budget": "32GiB"}}})
    master = settings_of(pool_of(objects, "master"), objects, monkeypatch)
    assert master.images == tuple(images)
    assert (master.queue_budget, master.teams["vision"].budget, master.teams["speech"].jobs) == (2**35, 2**33, None)


def test_the_default_is_that_of_the_services(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process knows them by itself, so the chart does not repeat them."""
    objects = helm.render()
    for workload in workloads(objects):
        component = labels_of(workload)["app.kubernetes.io/component"]
        if component == "task":
            continue
        settings = settings_of(workload, objects, monkeypatch)
        fields = type(settings).model_fields
        changed = {
            name for name, f in fields.items() if f.get_default(call_default_factory=True) != getattr(settings, name)
        }
        assert changed <= SET_BY_CHART


def test_settings_and_reference_are_those_of_the_services() -> None:
    assert drifted(reference.current()) == []


def test_every_setting_is_explained() -> None:
    for kind in SETTINGS.values():
        told = reference.settings_schema(kind)["properties"]
        assert not {name for name, field in told.items() if not field.get("description")}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pools": {"decoder": {"settings": {"decoder_procs": 4}}}}, "decoder_procs"),
        ({"pools": {"decoder": {"settings": {"prefetch_batches": 4}}}}, "prefetch_batches"),
        ({"pools": {"decoder": {"settings": {"decoder_processes": -1}}}}, "decoder_processes"),
        ({"settings": {"bus": "kafka://elsewhere:9092"}}, "bus"),
        ({"extraPools": {"x": {"service": "extractor", "settings": {"fetches": 1}}}}, "fetches"),
        ({"pools": {"decoder": {"env": [{"name": "ESSP_BUS", "value": "x"}]}}}, "env/0/name"),
    ],
)
def test_a_setting_that_the_service_has_not_is_refused(helm: Helm, values: Object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        helm.render(**values)


def test_a_change_of_configuration_restarts_the_pods(helm: Helm) -> None:
    def digest(**values: Any) -> str:
        pod = pool_of(helm.render(**values), "aggregator")["spec"]["template"]
        found: str = pod["metadata"]["annotations"]["checksum/config"]
        return found

    assert digest() == digest(pools={"decoder": {"replicas": 9}})
    assert digest() != digest(s3={"region": "eu-west-1"})
    assert named(helm.render(), "ConfigMap", "essp")


def tasks(objects: list[Object]) -> list[Object]:
    """The setup job, and the pod of `helm test`."""
    found = {w["kind"]: w for w in workloads(objects) if labels_of(w)["app.kubernetes.io/component"] == "task"}
    return [found["Job"], found["Pod"]]


def test_tasks_find_servers_as_the_master_does(helm: Helm) -> None:
    """They run before it, and in its place: by the same names, with the same variables."""
    hosts = [{"ip": "10.0.0.7", "hostnames": ["s3.internal"]}]
    dns, secret = {"searches": ["kafka.internal"]}, [{"secretRef": {"name": "proxy"}}]
    own = {"hostAliases": hosts, "envFrom": secret}
    objects = helm.render(poolDefaults={"dnsConfig": dns}, pools={"master": own})
    for workload in (pool_of(objects, "master"), *tasks(objects)):
        pod = pod_of(workload)["spec"]
        assert (pod["hostAliases"], pod["dnsConfig"]) == (hosts, dns)
        assert container_of(workload)["envFrom"][-1:] == secret
    for task in tasks(helm.render()):
        assert not {"hostAliases", "dnsConfig"} & pod_of(task)["spec"].keys()
        assert "envFrom" not in container_of(task)


def test_tasks_fit_a_quota(helm: Helm) -> None:
    """A quota of CPU limits refuses pods that have none."""
    small, large = {"limits": {"cpu": "1"}}, {"requests": {"memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    setup, doctor = tasks(helm.render(topics={"job": {"resources": small}}, test={"resources": large}))
    requests = {"cpu": "100m", "memory": "256Mi"}
    assert container_of(setup)["resources"] == {"requests": requests, "limits": {"cpu": "1", "memory": "256Mi"}}
    assert container_of(doctor)["resources"] == {
        "requests": {"cpu": "100m", "memory": "1Gi"},
        "limits": {"cpu": "2", "memory": "1Gi"},
    }


def test_a_tenants_topics_groups_and_pods_have_its_name(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if "keda" in case.stem)
    objects = helm.render(case, tenant="vision", monitoring={"monitors": {"enabled": True}})
    made = {made["spec"]["topicName"]: made["spec"]["config"] for made in of_kind(objects, "KafkaTopic")}
    assert {topics.of_tenant("vision", topic) for topic in topics.FIXED} < set(made)
    assert made["vision.essp.control"]["retention.ms"] == -1
    triggers = [scaled["spec"]["triggers"][0]["metadata"] for scaled in of_kind(objects, "ScaledObject")]
    assert ("vision.essp.seeds", "vision.decoder") in {(t["topic"], t["consumerGroup"]) for t in triggers}
    for workload in workloads(objects):
        assert settings_of(workload, objects, monkeypatch).tenant == "vision"
        assert labels_of(workload)["essp.dev/tenant"] == "vision"
    (scraped,), (service,) = of_kind(objects, "ServiceMonitor"), of_kind(objects, "Service")
    assert scraped["spec"]["targetLabels"] == ["essp.dev/tenant"]
    assert service["metadata"]["labels"]["essp.dev/tenant"] == "vision"
    assert "essp.dev/tenant" not in labels_of(pool_of(helm.render(), "master"))
    for name in (*ids.RESERVED, "a.b", "A"):
        with pytest.raises(Refused, match="tenant"):
            helm.render(tenant=name)

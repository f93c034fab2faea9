"""docker-compose.yml: what has to hold of it holds, and each rule notices when it does not."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose import rules
from tests.compose.rules import ROOT, RULES, Compose, Rule, load


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    assert list(rule(load())) == []


def put(*path: Any) -> Callable[[Compose], None]:
    """Sets `services.<path...>` to the last of these; `None` removes it."""

    def damage(compose: Compose) -> None:
        *way, last, value = ["services", *path]
        place = compose
        for step in way:
            place = place[step]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return damage


@pytest.mark.parametrize(
    ("rule", "damage", "said"),
    [
        (rules.images_have_exact_tags, put("redis", "image", "redis:latest"), "may move"),
        (rules.images_have_exact_tags, put("kafka", "image", "apache/kafka"), "may move"),
        (rules.images_have_exact_tags, put("decoder", "image", "essp-video:9.9.9"), "is not version"),
        (rules.services_are_confined, put("decoder", "read_only", None), "can be written"),
        (rules.services_are_confined, put("s3", "cap_drop", None), "privileges"),
        (rules.services_are_confined, put("master", "ports", ["8080:8080"]), "open to other machines"),
        (rules.services_are_confined, put("predictor", "mem_limit", None), "no limit"),
        (rules.health_is_checked, put("s3", "healthcheck", None), "no health check"),
        (rules.health_is_checked, put("decoder", "healthcheck", {"disable": True}), "is not checked"),
        (rules.health_is_checked, put("setup", "healthcheck", None), "never healthy"),
        (rules.services_start_in_order, put("setup", "depends_on", "s3", None), "does not wait for s3"),
        (rules.services_start_in_order, put("decoder", "depends_on", {}), "does not wait for setup"),
        (
            rules.services_start_in_order,
            put("master", "depends_on", {"setup": {"condition": "service_healthy"}}),
            "waits for setup with",
        ),
        (
            rules.tools_leave_services_alone,
            put("demo", "depends_on", {"decoder": {"condition": "service_healthy"}}),
            "takes back what was scaled of decoder",
        ),
        (rules.settings_exist, put("decoder", "environment", "ESSP_DECODER_PROCESES", "2"), "is not a setting"),
        (rules.settings_exist, put("aggregator", "environment", "ESSP_FEATURES", "[]"), "is not a setting"),
        (
            rules.memory_is_enough_on_any_machine,
            put("decoder", "environment", "ESSP_DECODER_PROCESSES", None),
            "any number of children share 2g",
        ),
        (rules.memory_is_enough_on_any_machine, put("decoder", "mem_limit", "1536m"), "2 children share 1536m"),
        (rules.servers_are_where_settings_say, put("master", "environment", "ESSP_BUS", "kafka://k:1"), "says that it"),
        (rules.servers_are_where_settings_say, put("s3", "environment", "ROOT_SECRET_KEY", "x"), "other keys"),
        (rules.servers_are_where_settings_say, put("s3", "command", 1, ":9000"), "ESSP_STORES is"),
        (rules.topics_are_created, put("extractor", "environment", "ESSP_FEATURES", '["hog"]'), "topic of hog"),
        (rules.redis_keeps_frames, put("redis", "command", 4, "allkeys-lru"), "may drop"),
        (rules.commands_exist, put("decoder", "command", ["decode"]), "no `essp decode`"),
        (rules.commands_exist, put("demo", "command", 0, "run jobs start x.yaml"), "no `essp jobs`"),
        (rules.only_objects_are_kept, put("kafka", "volumes", ["log:/var/lib/kafka"]), "mounts"),
        (rules.only_objects_are_kept, put("decoder", "container_name", "decoder"), "cannot be scaled"),
    ],
)
def test_rule_notices(rule: Rule, damage: Callable[[Compose], None], said: str) -> None:
    compose = deepcopy(load())
    damage(compose)
    assert any(said in problem for problem in rule(compose))


def test_every_variable_is_documented_with_its_default() -> None:
    files = [ROOT / name for name in ("docker-compose.yml", "docker-compose.gpu.yml")]
    used = rules.variables("".join(file.read_text(encoding="utf-8") for file in files))
    lines = (ROOT / "docker" / "env.example").read_text(encoding="utf-8").splitlines()
    told = dict(
        line.lstrip("# ").split("=", 1) for line in lines if "=" in line and " " not in line.partition("=")[0][2:]
    )
    assert told.keys() == used.keys()
    assert {name: told[name] for name in used if name != "ESSP_VIDEOS"} == {
        name: default for name, default in used.items() if name != "ESSP_VIDEOS"
    }


def test_code_under_edit_is_that_of_all_packages_in_every_service_of_ours() -> None:
    """Read-only, and a change restarts the service that it is of."""
    override = read("docker-compose.dev.yml")["services"]
    ours = {name for name, service in load()["services"].items() if rules.is_essp(service)}
    assert override.keys() == ours
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["check-wheel-contents"]
    for name, service in override.items():
        mounts = {
            target: source for source, target, mode in (it.split(":") for it in service["volumes"]) if mode == "ro"
        }
        assert len(mounts) == len(service["volumes"])
        assert {Path(target).name for target in mounts} == {*packages["toplevel"]}
        for target, source in mounts.items():
            assert (ROOT / source / "__init__.py").exists()
            assert Path(target).parent == Path("/opt/essp/lib/python3.11/site-packages")
            assert Path(source).name == Path(target).name
        watched = [watch["path"] for watch in service.get("develop", {}).get("watch", ())]
        assert [path for path in watched if path not in mounts.values()] == []
        assert bool(watched) is (load()["services"][name].get("restart") != "no")


def test_gpus_go_to_who_uses_them_with_an_image_that_can() -> None:
    override = read("docker-compose.gpu.yml")["services"]
    trains = {
        name for name, service in load()["services"].items() if rules.command_of(service) in ("trainer", "predictor")
    }
    assert override.keys() == trains
    for service in override.values():
        assert service["image"] == f"essp-trainer:{rules.version()}-cuda"
        assert service["build"]["target"] == "torch-cuda"
        assert service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def read(name: str) -> Compose:
    found: Compose = yaml.safe_load(rules.interpolated((ROOT / name).read_text(encoding="utf-8")))
    return found


def test_an_empty_secret_is_not_replaced_by_one_that_everybody_knows() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    for name in ("ESSP_API_TOKEN", "ESSP_S3_USER", "ESSP_S3_PASSWORD"):
        assert f"${{{name}-" in text
        assert f"${{{name}:-" not in text


def test_scripts_are_sound() -> None:
    scripts = [*ROOT.glob("tests/compose/*.sh"), *ROOT.glob("docker/*.sh")]
    assert len(scripts) >= 3
    for script in scripts:
        done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), script

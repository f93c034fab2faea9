"""What has to hold of docker-compose.yml, checked without docker: each rule takes the file and names what breaks it."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from essp.cli.commands import SECTIONS
from essp_aggregator.config import AggregatorSettings
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.errors import ConfigError
from essp_common.runtime.config import Settings
from essp_decoder.config import DecoderSettings
from essp_extractor.config import ExtractorSettings
from essp_master.config import MasterSettings
from essp_predictor.config import PredictorSettings
from essp_trainer.config import TrainerSettings

ROOT = Path(__file__).resolve().parents[2]
Compose = dict[str, Any]
Rule = Callable[[Compose], Iterator[str]]

SETTINGS: dict[str, type[Settings]] = {
    "master": MasterSettings,
    "decoder": DecoderSettings,
    "extractor": ExtractorSettings,
    "trainer": TrainerSettings,
    "aggregator": AggregatorSettings,
    "predictor": PredictorSettings,
}
COMMANDS = {name for section in SECTIONS.values() for name in section}
CLIENT_VARIABLES = {"ESSP_SERVER", "ESSP_API_TOKEN"}
"""What commands take from the environment that are no settings of a service."""
WRITES_ITS_ROOT = {"kafka"}
SERVERS = ("kafka", "redis", "s3")
SCALED = ("decoder", "extractor", "aggregator", "predictor")
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<also_if_empty>:)?(-(?P<default>[^}]*))?\}")


@cache
def load() -> Compose:
    """The file as docker compose reads it where no variable is set. To be looked at only."""
    found: Compose = yaml.safe_load(interpolated((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    return found


def interpolated(text: str) -> str:
    """`${NAME:-default}` replaced by the default, and `$$` by `$`."""
    return _VARIABLE.sub(lambda m: m["default"] or "", text).replace("$$", "$")


def variables(text: str) -> dict[str, str]:
    """Each variable with its default."""
    return {m["name"]: m["default"] or "" for m in _VARIABLE.finditer(text)}


def version() -> str:
    """Of the project."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def is_essp(service: Mapping[str, Any]) -> bool:
    """Runs an image of ours."""
    return str(service["image"]).startswith("essp-")


def command_of(service: Mapping[str, Any]) -> str:
    """The sub-command of `essp` that a service runs, or `` where that is the image's."""
    return str((service.get("command") or [""])[0])


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    """Variables as the process sees them."""
    return {name: str(value) for name, value in (service.get("environment") or {}).items()}


def images_have_exact_tags(compose: Compose) -> Iterator[str]:
    for name, service in compose["services"].items():
        tag = str(service["image"]).partition(":")[2]
        if not re.fullmatch(r"v?\d+\.\d+\.\d+(-[\w.]+)?", tag):
            yield f"{name}: the tag of {service['image']} may move"
        if is_essp(service):
            if tag.removesuffix("-cpu") != version():
                yield f"{name}: {service['image']} is not version {version()}"
            if service["build"]["args"]["VERSION"] != version():
                yield f"{name}: is built as version {service['build']['args']['VERSION']}"


def services_are_confined(compose: Compose) -> Iterator[str]:
    for name, service in compose["services"].items():
        if service.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in service.get("security_opt", []):
            yield f"{name}: may gain privileges"
        if not service.get("mem_limit") or not service.get("pids_limit"):
            yield f"{name}: has no limit of memory or processes"
        if not service.get("read_only") and name not in WRITES_ITS_ROOT:
            yield f"{name}: its root can be written"
        if is_essp(service) and service.get("user") != "10001:10001":
            yield f"{name}: does not run as user 10001"
        if service.get("privileged") or service.get("network_mode") == "host":
            yield f"{name}: is not contained"
        for port in service.get("ports", []):
            if not str(port).startswith("127.0.0.1:"):
                yield f"{name}: port {port} is open to other machines"


def health_is_checked(compose: Compose) -> Iterator[str]:
    for name, service in compose["services"].items():
        check = service.get("healthcheck", {})
        one_shot = service.get("restart") == "no"
        if one_shot != bool(check.get("disable")):
            yield f"{name}: {'ends by itself, so is never healthy' if one_shot else 'is not checked'}"
        if not is_essp(service) and not check.get("test"):
            yield f"{name}: has no health check"


def services_start_in_order(compose: Compose) -> Iterator[str]:
    services = compose["services"]
    for name, service in services.items():
        for other, how in (service.get("depends_on") or {}).items():
            if other not in services:
                yield f"{name}: waits for {other}, which is not there"
                continue
            one_shot = services[other].get("restart") == "no"
            if one_shot != (how["condition"] == "service_completed_successfully"):
                yield f"{name}: waits for {other} with {how['condition']}"
    for server in SERVERS:
        if services["setup"]["depends_on"].get(server, {}).get("condition") != "service_healthy":
            yield f"setup: does not wait for {server}"
    for name, service in services.items():
        if (
            is_essp(service)
            and not service.get("profiles")
            and name != "setup"
            and "setup" not in service["depends_on"]
        ):
            yield f"{name}: does not wait for setup"


def tools_leave_services_alone(compose: Compose) -> Iterator[str]:
    """`docker compose run` brings up what a service depends on, at one container each: that takes back `--scale`."""
    for name, service in compose["services"].items():
        if service.get("profiles") and service.get("depends_on"):
            yield f"{name}: takes back what was scaled of {', '.join(service['depends_on'])}"


def settings_exist(compose: Compose) -> Iterator[str]:
    for name, service in compose["services"].items():
        if not is_essp(service):
            continue
        command = "master" if name == "master" else command_of(service)
        kind = SETTINGS.get(command, Settings)
        known = {f"ESSP_{field.upper()}" for field in kind.model_fields} | CLIENT_VARIABLES
        for variable in environment(service):
            if variable.startswith("ESSP_") and variable not in known:
                yield f"{name}: {variable} is not a setting of `essp {command}`"


def memory_is_enough_on_any_machine(compose: Compose) -> Iterator[str]:
    """A decoder asks the machine for its CPUs, as its container limits none: where the number of children is not fixed,
    it grows with the machine, and their memory does not."""
    for name, service in compose["services"].items():
        if command_of(service) == "decoder":
            children = int(environment(service).get("ESSP_DECODER_PROCESSES", 0))
            if not 0 < children <= gigabytes(str(service["mem_limit"])):
                yield f"{name}: {children or 'any number of'} children share {service['mem_limit']}"


def gigabytes(limit: str) -> float:
    """Of a limit of compose."""
    return int(limit[:-1]) / {"g": 1, "m": 1024}[limit[-1]]


def servers_are_where_settings_say(compose: Compose) -> Iterator[str]:
    services = compose["services"]
    for name, service in services.items():
        if not is_essp(service):
            continue
        found = environment(service)
        try:
            options = KafkaOptions.from_url(found["ESSP_BUS"])
        except ConfigError as error:
            yield f"{name}: {error}"
            continue
        advertised = environment(services["kafka"])["KAFKA_ADVERTISED_LISTENERS"]
        if advertised != f"PLAINTEXT://{','.join(options.servers)}":
            yield f"{name}: Kafka says that it is at {advertised}, ESSP_BUS is {found['ESSP_BUS']}"
        if found["ESSP_CACHE"] != "redis://redis:6379/0":
            yield f"{name}: ESSP_CACHE is {found['ESSP_CACHE']}"
        keys = environment(services["s3"])
        if (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) != (
            keys["ROOT_ACCESS_KEY"],
            keys["ROOT_SECRET_KEY"],
        ):
            yield f"{name}: has other keys than the S3 server"
        stores = yaml.safe_load(found["ESSP_STORES"])
        port = services["s3"]["command"][services["s3"]["command"].index("--port") + 1]
        if f"s3://essp?endpoint=http://s3{port}" not in stores:
            yield f"{name}: ESSP_STORES is {stores}"


def topics_are_created(compose: Compose) -> Iterator[str]:
    setup = compose["services"]["setup"]["command"]
    created = {setup[at + 1] for at, word in enumerate(setup) if word == "--feature"}
    made = set(yaml.safe_load(environment(compose["services"]["extractor"])["ESSP_FEATURES"]))
    for feature in made - created:
        yield f"setup: does not create the topic of {feature}"


def redis_keeps_frames(compose: Compose) -> Iterator[str]:
    command = compose["services"]["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    if options.get("--maxmemory-policy") != "noeviction":
        yield "redis: may drop frames"
    if not options.get("--maxmemory"):
        yield "redis: has no limit of its own"
    if options.get("--save") != "" or options.get("--appendonly") != "no":
        yield "redis: writes frames to disk"


def commands_exist(compose: Compose) -> Iterator[str]:
    for name, service in compose["services"].items():
        if not is_essp(service):
            continue
        command = command_of(service)
        if service.get("entrypoint"):
            lines = str(service["command"][0]).replace("\\\n", " ").splitlines()
            words = [shlex.split(line)[1] for line in lines if line.strip().startswith("run ")]
        else:
            words = [command] if command and command != "--help" else []
        for word in words:
            if word not in COMMANDS:
                yield f"{name}: there is no `essp {word}`"


def only_objects_are_kept(compose: Compose) -> Iterator[str]:
    if set(compose["volumes"]) != {"objects", "videos"}:
        yield f"volumes are {sorted(compose['volumes'])}"
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            if volume != "objects:/data" and not str(volume).endswith(":/videos:ro"):
                yield f"{name}: mounts {volume}"
        if name in SCALED and ("ports" in service or "container_name" in service):
            yield f"{name}: cannot be scaled"


RULES: tuple[Rule, ...] = (
    images_have_exact_tags,
    services_are_confined,
    health_is_checked,
    services_start_in_order,
    tools_leave_services_alone,
    settings_exist,
    memory_is_enough_on_any_machine,
    servers_are_where_settings_say,
    topics_are_created,
    redis_keeps_frames,
    commands_exist,
    only_objects_are_kept,
)

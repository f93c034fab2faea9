"""`essp setup`: create topics and buckets before the first service starts.

It creates the topics with the partitions that ESSP needs, unless something else creates them (`--no-topics`), and on
request the buckets of ESSP_STORES. Existing ones are left unchanged, so it may run at every start, as it does in the
compose file and the chart. It needs rights that services can then do without (Kafka: create topics; S3: create
buckets). `--acls` creates nothing: it prints the commands that give each service the rights it needs, and no others.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import typer

from essp.cli import completions
from essp_common import topics
from essp_common.cache.port import of_tenant
from essp_common.errors import ConfigError
from essp_common.runtime.config import Settings
from essp_common.wiring import open_bus

_SETUP, _LOOP = "setup", "loop"
_MAY_CREATE = {_SETUP: ("Create",), "people": ("Create",)}  # the doctor creates its topic if `essp setup` has not
_KAFKA = "kafka-acls.sh --bootstrap-server BROKER:9092 --add --force --allow-principal"


def main(
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="Also create the topic of this feature; may be repeated.", autocompletion=completions.features
        ),
    ] = None,
    buckets: Annotated[bool, typer.Option(help="Create the buckets of ESSP_STORES that are missing.")] = False,
    no_topics: Annotated[
        bool, typer.Option("--no-topics", help="Do not create topics, because something else does (Strimzi).")
    ] = False,
    acls: Annotated[
        bool, typer.Option("--acls", help="Create nothing; print commands for the rights that services need.")
    ] = False,
    principal: Annotated[
        str,
        typer.Option(
            help="With --acls: principal of each service in Kafka; without {service}, all services share one."
        ),
    ] = "User:essp-{service}",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Create topics, or add partitions to them, and, with --buckets, create buckets. Settings come from the environment
    (ESSP_BUS, ESSP_STORES, ESSP_TENANT, ESSP_PARTITIONS)."""
    settings = Settings()
    if acls:
        rights = list(_rights(settings.tenant, principal))
        typer.echo(json.dumps({"rights": rights}) if as_json else "\n".join(rights))
        return
    made: dict[str, list[str]] = {"topics": [], "buckets": []}
    if no_topics and feature:
        raise ConfigError("leave out --feature, whose topic it would not create", field="--no-topics", code="conflict")
    if no_topics and not buckets:
        raise ConfigError("without --buckets there is nothing to create", field="--no-topics", code="conflict")
    if not no_topics:
        if settings.bus.startswith("memory:"):
            raise ConfigError(
                "is memory://, which holds topics only as long as a process runs; set it to kafka://host:port "
                "(`essp servers up` prints all settings)",
                field="ESSP_BUS",
                code="conflict",
            )
        wanted = [*topics.FIXED, topics.DOCTOR, *map(topics.features, feature or ())]
        with closing(open_bus(settings.bus, settings.bus_login, settings.tenant, settings.partitions)) as bus:
            bus.ensure_topics({topic: topics.partitions(topic, bus.partitions) for topic in wanted}, grow=True)
        made["topics"] = [topics.of_tenant(settings.tenant, topic) for topic in wanted]
        if not as_json:
            typer.echo(f"topics are there: {', '.join(made['topics'])}")
    if buckets:
        for root in settings.stores:
            if root.startswith("s3://"):
                made["buckets"].append(_create_bucket(root))
                if not as_json:
                    typer.echo(f"bucket {made['buckets'][-1]}")
    if as_json:
        typer.echo(json.dumps(made))


def _rights(tenant: str, principal: str) -> Iterator[str]:
    """Commands for the tools of Kafka and Redis: what each service may do, from the table of topics."""
    if "{" in principal.replace("{service}", ""):
        raise ConfigError(f"{principal}: only {{service}} may stand in braces", field="--principal")
    operations: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    """(principal, resource, kind of pattern) -> operations."""
    everything = topics.of_tenant(tenant, "essp.")
    for service in (*sorted(topics.SERVICES), _SETUP):
        who = principal.replace("{service}", service)
        operations[who, f"--topic {everything}", "prefixed"] |= {"Describe", *_MAY_CREATE.get(service, ())}
        for access in topics.ACCESS:
            kind = "prefixed" if access.topic.endswith(".") else "literal"
            done = {"Write"} if service in access.publish else set()
            done |= {"Read"} if service in access.read else set()
            if done:
                operations[who, f"--topic {topics.of_tenant(tenant, access.topic)}", kind] |= done
        if service not in ("people", _SETUP):
            group = topics.of_tenant(tenant, "consumer" if service == _LOOP else service)
            operations[who, f"--group {group}", "prefixed"].add("Read")
    yield "# Kafka"
    for (who, resource, kind), wanted in operations.items():
        names = " ".join(f"--operation {name}" for name in sorted(wanted))
        yield f"{_KAFKA} {shlex.quote(who)} {names} {resource} --resource-pattern-type {kind}"
    yield "# Redis"
    user = f"essp-{tenant}" if tenant else "essp"
    keys = of_tenant(tenant, "essp:*")
    yield f"ACL SETUSER {user} on >PASSWORD resetkeys ~{keys} resetchannels +@all -@dangerous +info"


def _create_bucket(root: str) -> str:
    from essp_common.objects.s3 import S3Store

    store = S3Store.from_url(root)
    return f"{root.partition('?')[0]} {'was created' if store.create_bucket() else 'is there'}"

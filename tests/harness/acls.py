"""The commands of `essp setup --acls`, read as Kafka's tool reads them."""

from __future__ import annotations

import argparse
import shlex
from typing import NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType


class Grant(NamedTuple):
    """What one command grants."""

    principals: tuple[str, ...]
    operations: tuple[str, ...]
    resources: tuple[str, ...]
    """Kind and name: `topic essp.seeds`."""
    kind: str
    """`literal` or `prefixed`."""


def grants(text: str) -> list[Grant]:
    """The grants of all commands in a text."""
    return [_grant(line) for line in text.splitlines() if line.startswith("kafka-acls.sh ")]


def _grant(line: str) -> Grant:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--resource-pattern-type")
    for name in ("allow-principal", "operation", "topic", "group"):
        parser.add_argument(f"--{name}", action="append", default=[])
    found = parser.parse_args(shlex.split(line)[1:])
    resources = [f"{kind} {name}" for kind in ("topic", "group") for name in getattr(found, kind)]
    return Grant(
        tuple(found.allow_principal), tuple(found.operation), tuple(resources), str(found.resource_pattern_type)
    )


def give(admin: KafkaAdminClient, given: list[Grant]) -> None:
    """Carry them out."""
    acls = [
        ACL(
            principal=principal,
            host="*",
            operation=ACLOperation[operation.upper()],
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(
                ResourceType[kind.upper()], name, ACLResourcePatternType[grant.kind.upper()]
            ),
        )
        for grant in given
        for principal in grant.principals
        for operation in grant.operations
        for kind, _, name in (resource.partition(" ") for resource in grant.resources)
    ]
    answer = admin.create_acls(acls)
    assert not answer["failed"], answer["failed"]

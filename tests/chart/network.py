"""Who may talk to whom: what network policies allow, as a cluster that enforces them would decide."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from tests.chart.rendering import Object, container_of, labels_of, of_kind

ANY_NAMESPACE = "elsewhere"


@dataclass(frozen=True)
class Peer:
    """One end of a connection: a pod, by namespace and labels, or an address outside the cluster."""

    labels: dict[str, str] = field(default_factory=dict)
    namespace: str = "training"
    address: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    """Named ports of its container."""

    @classmethod
    def of(cls, workload: Object) -> Peer:
        """A pod of a workload of this release."""
        ports = {port["name"]: port["containerPort"] for port in container_of(workload).get("ports", ())}
        return cls(labels_of(workload), ports=ports)


def allowed(objects: list[Object], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether `source` can open a connection to a port of `target`."""
    return _phases(objects, "Egress", source, target, target, port, protocol) and _phases(
        objects, "Ingress", target, source, target, port, protocol
    )


def _phases(objects: list[Object], way: str, own: Peer, other: Peer, target: Peer, port: int, protocol: str) -> bool:
    """What the policies of one end say. An end without a policy for this way lets everything pass."""
    policies = [made["spec"] for made in of_kind(objects, "NetworkPolicy") if _selects(made["spec"], own)]
    policies = [policy for policy in policies if way in policy["policyTypes"]]
    if not policies:
        return True
    rules = [rule for policy in policies for rule in policy.get(way.lower()) or ()]
    ends = "to" if way == "Egress" else "from"
    return any(_port_fits(rule, target, port, protocol) and _peer_fits(rule.get(ends), other) for rule in rules)


def _selects(policy: Object, peer: Peer) -> bool:
    """Policies of this release are in its namespace."""
    return not peer.address and peer.namespace == "training" and _labels_fit(policy["podSelector"], peer.labels)


def _labels_fit(selector: Object, labels: dict[str, str]) -> bool:
    return set(selector) <= {"matchLabels"} and selector.get("matchLabels", {}).items() <= labels.items()


def _port_fits(rule: Object, target: Peer, port: int, protocol: str) -> bool:
    if "ports" not in rule:
        return True
    numbers = [(target.ports.get(p["port"], p["port"]), p.get("protocol", "TCP")) for p in rule["ports"]]
    return (port, protocol) in numbers


def _peer_fits(peers: list[Object] | None, other: Peer) -> bool:
    if not peers:
        return True
    return any(_is(peer, other) for peer in peers)


def _is(peer: Object, other: Peer) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        if not other.address:
            return False
        address = ipaddress.ip_address(other.address)
        excepted = any(address in ipaddress.ip_network(part) for part in block.get("except", ()))
        return address in ipaddress.ip_network(block["cidr"]) and not excepted
    if other.address:
        return False
    if "namespaceSelector" in peer:
        names = {"kubernetes.io/metadata.name": other.namespace}
        return _labels_fit(peer["namespaceSelector"], names) and _labels_fit(peer.get("podSelector", {}), other.labels)
    return other.namespace == "training" and _labels_fit(peer["podSelector"], other.labels)

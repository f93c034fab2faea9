"""Names in the `Host` header: how they are compared, and which of them a foreign page cannot have. Pure, except for
`search_domains`.

A page may request any name that its owner controls, and the owner may point that name at one of our machines (DNS
rebinding): the browser then treats our answers as the page's own. An address cannot be redirected like that, and names
inside a network are in no public registry.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]\\,]+?)\.?(?::(?P<port>[0-9]{1,5}))?")
_INSIDE = ("arpa", "internal", "intranet", "lan", "local", "localdomain", "localhost", "svc", "test")
"""Last labels of names that cannot be registered publicly: reserved ones, `cluster.local`, and services of
Kubernetes."""
RESOLVER = Path("/etc/resolv.conf")


def plain(authority: str) -> str:
    """Return the host of an authority (`HOST:PORT`) in its canonical form: in lower case, an address in its shortest
    form and without brackets. Empty if the authority is invalid."""
    found = AUTHORITY.fullmatch(authority)
    return "" if found is None else plain_name(found["name"])


def plain_name(name: str) -> str:
    """Return a host in its canonical form."""
    name = name.strip("[]").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    return str(getattr(address, "ipv4_mapped", None) or address)


def search_domains() -> tuple[str, ...]:
    """Return the domains in which this machine looks up short names; in a pod, the domains of its cluster."""
    found: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        for line in RESOLVER.read_text().splitlines():
            words = line.split()
            if words and words[0] in ("search", "domain"):
                found += [name.strip(".").lower() for name in words[1:]]
    return tuple(filter(None, found))


def is_inside(authority: str, domains: Collection[str]) -> bool:
    """Whether a host is an address, a name without dots, or an internal name: below a label that cannot be registered
    publicly, or below one of `domains`."""
    name = plain(authority)
    if not name:
        return False
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    last = name.rpartition(".")[2]
    return "." not in name or last in _INSIDE or any(name.endswith(f".{domain}") for domain in domains)

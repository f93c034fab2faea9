"""Names in the header `Host`: how they are compared, and which of them no page of a stranger can have. Pure, but for
`search_domains`.

A page may ask for any name that its owner has, and its owner may have that name lead to a machine of ours (DNS
rebinding): the browser then takes our answers for the page's own. An address cannot be made to lead elsewhere, and
names of a network's inside are in no public registry.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]\\,]+?)\.?(?::(?P<port>[0-9]{1,5}))?")
_INSIDE = ("arpa", "internal", "intranet", "lan", "local", "localdomain", "localhost", "svc", "test")
"""Last parts of names that nobody can register: reserved ones, `cluster.local`, and services of Kubernetes."""
RESOLVER = Path("/etc/resolv.conf")


def plain(authority: str) -> str:
    """The host of an authority (`HOST:PORT`), as hosts are compared: in small letters, an address in its shortest form
    and without brackets. Empty: it is none."""
    found = AUTHORITY.fullmatch(authority)
    return "" if found is None else plain_name(found["name"])


def plain_name(name: str) -> str:
    """A host, as hosts are compared."""
    name = name.strip("[]").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    return str(getattr(address, "ipv4_mapped", None) or address)


def search_domains() -> tuple[str, ...]:
    """The domains in which this machine looks for short names: in a pod those of its cluster."""
    found: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        for line in RESOLVER.read_text().splitlines():
            words = line.split()
            if words and words[0] in ("search", "domain"):
                found += [name.strip(".").lower() for name in words[1:]]
    return tuple(filter(None, found))


def is_inside(authority: str, domains: Collection[str]) -> bool:
    """Whether a host is an address, a name without dots, or one that lies within: below a name that nobody can
    register, or below one of `domains`."""
    name = plain(authority)
    if not name:
        return False
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    last = name.rpartition(".")[2]
    return "." not in name or last in _INSIDE or any(name.endswith(f".{domain}") for domain in domains)

"""Listening sockets.

A cluster may have IPv4 addresses, IPv6 addresses, or both, and a machine may have no IPv6 at all: `::` stands for all
that exist.
"""

from __future__ import annotations

import socket

EVERYWHERE = "::"
"""Every address of the machine, of both kinds if it has both."""


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an IPv4 or IPv6 address, or at `EVERYWHERE`; `port` 0 takes a free one. Raises
    `OSError`."""
    if host == EVERYWHERE:
        if socket.has_dualstack_ipv6():
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)

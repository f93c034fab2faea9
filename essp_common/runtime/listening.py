"""Sockets that listen for connections.

A cluster may have addresses of IPv4, of IPv6, or both, and a machine may have no IPv6 at all: `::` stands for whatever
there is.
"""

from __future__ import annotations

import socket

EVERYWHERE = "::"
"""Every address of the machine, of both kinds as far as it has them."""


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address of IPv4 or IPv6, or `EVERYWHERE`; `port` 0 takes a free one. Raises
    `OSError`."""
    if host == EVERYWHERE:
        if socket.has_dualstack_ipv6():
            return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)

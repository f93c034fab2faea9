"""The options in the URL of a Kafka bus: servers, security, timeouts.

    kafka://host:port[,host:port]                              unencrypted
    kafka+ssl://host:port?ca=/etc/essp/ca.pem                  TLS; without `ca`, the system's authorities are trusted
    kafka+ssl://...?cert=/etc/essp/me.pem&key=/etc/essp/me.key    and a client certificate (mutual TLS)
    kafka+ssl://...?sasl=SCRAM-SHA-512                         user and password of ESSP_BUS_USER, ESSP_BUS_PASSWORD
    kafka+ssl://...?sasl=...&password_file=/etc/essp/password  the password in a file, read at each login

`sasl` is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; over `kafka://`, PLAIN shows the password to the network. Host names
are checked against the certificate. Further options, all in milliseconds: `session_timeout_ms` (15000: after this long
without a heartbeat, a dead worker's partitions are reassigned), `connect_timeout_ms` (10000), `linger_ms` (5: how long
a message waits for others to form a batch). A URL never contains a password, so that it can be shown.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, fields
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from essp_common.errors import ConfigError
from essp_common.runtime.addresses import checked_address, shown_address
from essp_common.runtime.login import NOBODY, Login, password_in

_REQUEST_TIMEOUT_MS = 15_000
"""How long one request may take; shorter than the delivery timeout, so that a lost answer is requested again."""
_MILLISECONDS = re.compile(r"0|[1-9][0-9]{0,8}")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_FILES = ("ca", "cert", "key")
_PROTOCOLS = {
    (False, False): "PLAINTEXT",
    (True, False): "SSL",
    (False, True): "SASL_PLAINTEXT",
    (True, True): "SASL_SSL",
}
# At DEBUG, kafka-python logs its settings and every byte that it sends, including passwords.
_logger = logging.getLogger("kafka")
_logger.setLevel(max(_logger.level, logging.INFO))

_EXAMPLE = "write kafka://host:port[,host:port], or kafka+ssl:// for TLS"


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of the URL, and the login."""

    servers: tuple[str, ...]
    session_timeout_ms: int = 15_000
    connect_timeout_ms: int = 10_000
    linger_ms: int = 5
    tls: bool = False
    ca: str = ""
    """File with the trusted authorities (PEM)."""
    cert: str = ""
    key: str = ""
    sasl: str = ""
    password_file: str = ""
    login: Login = NOBODY

    @classmethod
    def from_url(cls, url: str, login: Login = NOBODY) -> Self:
        """Parse a URL. Raises `ConfigError` for unknown or inconsistent options."""
        where = f"bus URL {shown_address(url)!r}"
        try:
            parts = urlsplit(checked_address(url))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}", code="unreadable") from None
        if "@" in parts.netloc:
            raise ConfigError(
                "the bus URL holds no user and password; set ESSP_BUS_USER and ESSP_BUS_PASSWORD",
                field="ESSP_BUS",
                code="conflict",
            )
        servers = tuple(server for server in parts.netloc.split(",") if server)
        if not servers or parts.path not in ("", "/"):
            raise ConfigError(f"{where}: {_EXAMPLE}")
        known = {field.name: field.type for field in fields(cls) if field.name not in ("servers", "tls", "login")}
        options: dict[str, Any] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known:
                raise ConfigError(
                    f"{where}: {_named(name)} is not an option; there are {sorted(known)}", code="unknown"
                )
            if not value:
                raise ConfigError(f"{where}: {name} has no value", code="missing")
            if known[name] == "int" and not _MILLISECONDS.fullmatch(value):
                raise ConfigError(f"{where}: {name} is not a number of milliseconds", code="type")
            options[name] = int(value) if known[name] == "int" else value
        found = cls(servers, **options, tls=parts.scheme == "kafka+ssl", login=login)
        found._check(where)
        return found

    def client(self) -> dict[str, Any]:
        """Return settings for every kind of client."""
        return {
            "bootstrap_servers": list(self.servers),
            "bootstrap_timeout_ms": self.connect_timeout_ms,
            "request_timeout_ms": _REQUEST_TIMEOUT_MS,
            "reconnect_backoff_max_ms": 2_000,
            **self._security(),
        }

    def consumer(self) -> dict[str, Any]:
        """Return settings for a consumer."""
        return self.client() | {"session_timeout_ms": self.session_timeout_ms}

    def _security(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"security_protocol": _PROTOCOLS[self.tls, bool(self.sasl)]}
        if self.tls:
            settings |= {f"ssl_{name}file": getattr(self, name) or None for name in _FILES}
        if self.sasl:
            settings |= {
                "sasl_mechanism": self.sasl,
                "sasl_plain_username": self.login.user,
                "sasl_plain_password": self.password,  # a function, which `kafka_clients.py` calls before each login
            }
        return settings

    def password(self) -> str:
        """Return the current password. Raises `ConfigError` if its file cannot be read."""
        return password_in(self.password_file) if self.password_file else self.login.password

    def _check(self, where: str) -> None:
        files = {name: path for name in _FILES if (path := getattr(self, name))}
        if files and not self.tls:
            raise ConfigError(f"{where}: {', '.join(files)} are for TLS; write kafka+ssl://", code="conflict")
        if bool(self.cert) != bool(self.key):
            raise ConfigError(f"{where}: cert and key belong together", code="missing")
        for name, path in files.items():
            if not os.access(path, os.R_OK):
                raise ConfigError(f"{where}: {name}: {path} cannot be read", code="unreadable")
        if self.sasl and self.sasl not in _MECHANISMS:
            raise ConfigError(
                f"{where}: sasl={self.sasl} is not known; there are {', '.join(_MECHANISMS)}", code="unknown"
            )
        if self.password_file and not self.sasl:
            raise ConfigError(
                f"{where}: password_file is set; say how to log in, as in ?sasl=SCRAM-SHA-512", code="missing"
            )
        if self.password_file and self.login.password:
            raise ConfigError(f"{where}: leave out password_file, or ESSP_BUS_PASSWORD", code="conflict")
        if self.sasl and not (self.login.user and self.password()):
            raise ConfigError(
                f"{where}: sasl needs ESSP_BUS_USER, and ESSP_BUS_PASSWORD or password_file", code="missing"
            )
        if self.login.user and not self.sasl:
            raise ConfigError(
                f"{where}: ESSP_BUS_USER is set; say how to log in, as in ?sasl=SCRAM-SHA-512", code="missing"
            )


def _named(option: str) -> str:
    """Return an option's name for messages; hide one that may be part of a password with a `&`."""
    return option if option.isidentifier() else "what follows the `?`"

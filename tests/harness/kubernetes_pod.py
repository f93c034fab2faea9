"""What a pod has to reach the API server: its address, its certificate, and a token that Kubernetes replaces."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes.config import incluster_config

_READ_AGAIN = datetime.timedelta(minutes=1)
"""After so long, the client library reads the file again."""


class ServiceAccount:
    """The mounted files of a service account; the client library's clock moves with them."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], ca: str, token: str
    ) -> None:
        """`address`: of the API server. `ca`: its certificate, in PEM."""
        self._now = datetime.datetime.now()
        self._token, certificate = folder / "token", folder / "ca.crt"
        self._token.write_text(token)
        certificate.write_text(ca)
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(self._token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
        for name, value in zip(("HOST", "PORT"), address, strict=True):
            monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", str(value))
        clock = SimpleNamespace(now=lambda: self._now)
        monkeypatch.setattr(incluster_config, "datetime", SimpleNamespace(datetime=clock, timedelta=datetime.timedelta))

    def replace(self, token: str) -> None:
        """Another token is mounted, as a kubelet does it: at once, and long before the old one expires."""
        following = self._token.with_suffix(".new")
        following.write_text(token)
        following.replace(self._token)
        self._now += _READ_AGAIN

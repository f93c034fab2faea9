"""Networks of clips with the layers that they have and fewer places, for tests that are not about their size."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from torch import nn

from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS
from essp_engine.learning.torchvision_compat import torchvision

S3D_SIDE = 32
MVIT_SIDE = 64


def small_mvit(monkeypatch: pytest.MonkeyPatch) -> None:
    """mvit_v2_s takes one size alone. Made by torchvision for a smaller one, whoever asks for it, it is as fast as the
    others."""
    make = torchvision.models.video.mvit._mvit
    small = {"spatial_size": (MVIT_SIDE, MVIT_SIDE)}
    monkeypatch.setattr(
        torchvision.models.video.mvit, "_mvit", lambda *args, **given: make(*args, **{**given, **small})
    )
    _replace(monkeypatch, "mvit_v2_s", replace(NETWORKS["mvit_v2_s"], side=MVIT_SIDE))


def small_s3d(monkeypatch: pytest.MonkeyPatch) -> None:
    """s3d ends with a pooling over 7 x 7 places. With one over all that there are, it takes `S3D_SIDE` pixels too."""
    entry = NETWORKS["s3d"]

    def made() -> nn.Module:
        network = entry.make()
        network.avgpool = nn.AdaptiveAvgPool3d(1)
        return network

    _replace(monkeypatch, "s3d", replace(entry, make=made))


def _replace(monkeypatch: pytest.MonkeyPatch, name: str, entry: Network) -> None:
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), name, entry)

"""A small package of somebody else: a network and a loss, with the two lines that register them for jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAME = "own_nets"
_PROJECT = f"""
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "own-nets"
version = "1.0"

[tool.setuptools]
py-modules = ["{NAME}"]

[project.entry-points."essp.models"]
tiny = "{NAME}:TINY"

[project.entry-points."essp.losses"]
focal = "{NAME}:focal"
"""
_MODULE = """
import torch
from torch import nn

import essp


def make():
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 24, 3, stride=2),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 2),
    )


TINY = essp.Network(make, stem="0", head="7")


def focal(logits, target):
    chance = logits.softmax(dim=1).gather(1, target[:, None])[:, 0]
    return -((1 - chance) ** 2) * chance.log()
"""


def installed(folder: Path) -> Path:
    """Build the package in `folder` and install it, as pip does; the folder to put on the path."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    (source / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    (source / f"{NAME}.py").write_text(_MODULE, encoding="utf-8")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return site

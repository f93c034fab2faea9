"""`make setup` goes on where programs of tests cannot be installed, and says which."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.written import ROOT

pytestmark = pytest.mark.processes


def test_a_program_that_cannot_be_had_is_named_and_the_others_are_installed(tmp_path: Path) -> None:
    """As on Ubuntu, which has no package chromium: root, an apt-get that knows the others, and a dead mirror."""
    _program(tmp_path, "id", "echo 0")
    _program(tmp_path, "apt-get", f'echo "$@" >> {tmp_path}/asked; case "$*" in *chromium | update*) exit 100;; esac')
    done = subprocess.run(
        ["/bin/sh", ROOT / "tools" / "programs.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().endswith("(names of Debian's packages): chromium")
    asked = [line.split()[-1] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == ["-qq", "chromium", "nodejs", "prometheus"]


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)

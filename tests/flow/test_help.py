"""`help(essp)` is a page to work from: its training loop runs as it stands, on frames and on flow, and resumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import essp
from tests.harness import launcher
from tests.lanes import often
from tools import python_reference as reference


def test_the_reference_is_that_of_the_docstrings() -> None:
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), "run: make docs"


@pytest.mark.parametrize("name", essp.__all__)
def test_what_is_public_is_described_with_an_example(name: str) -> None:
    assert reference.undescribed(name) is None


def examples() -> list[str]:
    """The code of `help(essp)`, block by block."""
    assert essp.__doc__
    found = re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", essp.__doc__)
    return [textwrap.dedent(block) for block in found]


def loop(feature: str, catalog: Path) -> str:
    """The training loop of the page, with what it says to change for flow; smaller, and of two epochs."""
    code, flow = examples()[:2]
    if feature == "flow":
        code = re.sub(r"^loader = .*\n", lambda _: flow, code, flags=re.MULTILINE).replace("Conv3d(3,", "Conv3d(20,")
    for before, after in (("size=112", "size=32"), ("batch_size=8", "batch_size=4"), ("epoch, 10)", "epoch, 2)")):
        assert before in code
        code = code.replace(before, after)
    assert len(code.strip().splitlines()) <= 24
    return "import torch; torch.manual_seed(0)\n" + code.replace('"catalog.parquet"', repr(str(catalog)))


_KILLED = """
import os, signal
saves, replace = [], os.replace

def replace_and_die(*files):
    replace(*files)
    saves.extend(file for file in files if file == "loop.pt")
    if len(saves) == 4:
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace_and_die
"""


@pytest.mark.processes
@pytest.mark.lane("promises")
@pytest.mark.parametrize("feature", often(["rgb", "flow"], 1))
def test_the_loop_of_the_page_trains_and_resumes(
    feature: str, catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its second epoch, it comes to the weights of one that was not."""
    code = loop(feature, catalog)
    weights: list[dict[str, Any]] = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        if name == "killed":
            environment = os.environ | {"TMPDIR": str(tmp_path)}
            command = [*launcher.python(), "-c", _KILLED + code]
            assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
            assert [torch.load("loop.pt")["loader"][field] for field in ("epoch", "clip")] == [1, 4]
        namespace: dict[str, Any] = {}
        exec(compile(code, "help(essp)", "exec"), namespace)
        namespace["loader"].close()
        saved = torch.load("loop.pt")
        assert (saved["loader"]["epoch"], saved["loader"]["clip"]) == (2, 0), "all of them are done"
        weights.append(saved["model"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

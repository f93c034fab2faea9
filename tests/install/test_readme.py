"""That `python -m tests.install` finds in the README what it is to run."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.install import readme


def test_the_install_is_found_with_and_without_a_gpu() -> None:
    cpu, cuda = (readme.install(Path("/x/e.whl"), cpu).splitlines() for cpu in (True, False))
    assert cuda == [line for line in cpu if readme.FOR_CPUS not in line]
    assert len(cpu) == len(cuda) + 1
    assert cpu[0].startswith("python3 -m venv")
    assert cpu[-1] == "pip install '/x/e.whl[demo]'"
    assert "pip install torch==2" in readme.install(Path("/x/e.whl"), True, "torch==2")


def test_the_commands_and_the_python_are_found() -> None:
    commands = readme.commands()
    for command in ("catalog build", "init", "validate", "run", "predict"):
        assert f"essp {command} " in commands
    assert "essp.Loader(" in readme.python()
    assert len(readme.blocks("shell")) == 2, "each block marked as shell is run"


def test_the_extras_of_the_table_exist() -> None:
    project = tomllib.loads((readme.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (readme.ROOT / "README.md").read_text(encoding="utf-8")
    named = {
        extra for line in text.splitlines() if line.startswith("| `.[") for extra in line[5:].split("]")[0].split(",")
    }
    assert {"embedded", "demo"} <= named <= set(project["optional-dependencies"])

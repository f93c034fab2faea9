"""What the README tells a user to do: its blocks, which run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOR_CPUS = "--index-url"
"""In the line that only a machine without a GPU needs."""
CHECKOUT = re.compile(r"'\.\[(\w+)\]'")
"""Of the line that installs ESSP, what a wheel stands in for."""


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in their order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def install(wheel: Path, cpu: bool, torch: str | None = None) -> str:
    """The commands that make an environment. `torch`: what to ask pip for in place of the line for CPUs."""
    lines = []
    for line in blocks("shell")[0].splitlines():
        if FOR_CPUS in line:
            if cpu:
                lines.append(line if torch is None else f"pip install {torch}")
        else:
            lines.append(CHECKOUT.sub(rf"'{wheel}[\1]'", line))
    return "\n".join(lines)


def commands() -> str:
    """What a user does with videos of his own."""
    return blocks("shell")[1]


def python() -> str:
    """The tour of the Python functions."""
    return blocks("python")[0]

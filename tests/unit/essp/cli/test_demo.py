"""`essp demo` that is interrupted says what is kept, and how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.cli import demo
from tests.harness.command_line import essp


@pytest.mark.parametrize("step", ["make_dataset", "build"])
def test_ctrl_c_before_the_training_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "make_dataset", lambda *_: None)
    monkeypatch.setattr(demo, step, interrupted)
    done = essp("demo", "--dir", str(tmp_path))
    assert done.exit_code == 130
    assert "what was made is kept: run the same command again to continue" in done.stderr

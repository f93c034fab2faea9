"""The browser that takes pictures: one that ends by itself is an error, and nothing of it is left."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tools.page_pictures import PageError, browser

_ENDS = "#!/bin/sh\nexit 1\n"
_ENDS_WHEN_TOLD = "#!/bin/sh\nhead -c 1 <&3 >/dev/null\n"
_LEFT_OPEN = "/proc/self/fd"


def children() -> str:
    """The processes that this thread has started and not waited for."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text(encoding="ascii")


@pytest.mark.processes
@pytest.mark.timeout(60)
@pytest.mark.parametrize("script", [_ENDS, _ENDS_WHEN_TOLD], ids=["at once", "when it is told something"])
def test_a_browser_that_ends_is_an_error(tmp_path: Path, script: str) -> None:
    program = tmp_path / "chromium"
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    before, running = set(os.listdir(_LEFT_OPEN)), children()
    with pytest.raises(PageError, match="Chromium has ended"), browser(str(program)):
        pass
    assert set(os.listdir(_LEFT_OPEN)) <= before
    assert children() == running

"""Where tests of checkpoints keep them."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.objects.directory import DirectoryStore


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path))

"""The adapters of a process, opened and closed together."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.bus.memory import MemoryBus
from essp_common.cache.shm import SharedMemoryCache
from essp_common.errors import Unavailable
from essp_common.wiring import Adapters, Stores


def test_a_bus_that_cannot_be_flushed_leaves_no_cache_behind(tmp_path: Path) -> None:
    class Away(MemoryBus):
        def close(self) -> None:
            raise Unavailable("2 messages were not delivered")

    adapters = Adapters(Away(), SharedMemoryCache("clips", 2**20, tmp_path), Stores([]))
    with pytest.raises(Unavailable, match="not delivered"):
        adapters.close()
    assert not list(tmp_path.iterdir())

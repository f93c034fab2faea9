"""The adapters of a process, opened and closed together."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.bus.memory import MemoryBus
from essp_common.cache.shm import SharedMemoryCache
from essp_common.errors import ConfigError, NotFound, Unavailable
from essp_common.wiring import Adapters, Stores


def test_a_bus_that_cannot_be_flushed_leaves_no_cache_behind(tmp_path: Path) -> None:
    class Away(MemoryBus):
        def close(self) -> None:
            raise Unavailable("2 messages were not delivered")

    adapters = Adapters(Away(), SharedMemoryCache("clips", 2**20, tmp_path), Stores([]))
    with pytest.raises(Unavailable, match="not delivered"):
        adapters.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "uri", ["hf://datasets/owner/name/a.mp4", "http://host:8000/x/a.mp4", "s3://b/x/a.mp4", "file:///videos/a.mp4"]
)
def test_the_roots_that_an_error_suggests_make_the_video_readable(uri: str) -> None:
    with pytest.raises(NotFound) as caught:
        Stores(["file:///data"]).resolve(uri, video=True)
    suggested = str(caught.value).rpartition("ESSP_STORES=")[2].split(",")
    assert uri.startswith(Stores(suggested).root_of(uri).removesuffix("/"))


def test_a_root_may_be_there_twice_but_not_on_two_servers() -> None:
    first, second = "s3://b?endpoint=http://one:1", "s3://b?endpoint=http://two:2&secret=x"
    with pytest.raises(ConfigError, match="s3://b/ is there twice") as caught:
        Stores([first, "file:///data", second])
    assert "secret" not in str(caught.value)
    assert Stores([first, "file:///data", "file:///data/", first]).root_of("s3://b/x") == "s3://b/"

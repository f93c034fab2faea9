"""Videos on a web server: a list of addresses becomes a catalog, and a loader gives the frames of the very files. A
server that goes away is waited for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import get_loop

import essp
from essp.api import streaming
from essp.catalog.build import BuildOptions, build
from essp_common.errors import Unavailable
from essp_engine.decoding.probing import Prober
from essp_engine.decoding.sandbox import Sandbox
from tests.contract.web_server import http_server
from tests.harness.loops import in_groups


@pytest.fixture(scope="module")
def fsspec_thread() -> None:
    """fsspec has one thread for all that it does over a network, as long as the process lives."""
    get_loop()


@pytest.mark.usefixtures("fsspec_thread")
def test_videos_on_a_web_server(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(videos.rglob("*.mp4"))[:3]
    with http_server(videos) as address:
        roots = ("file:///", address)
        monkeypatch.setenv("ESSP_STORES", f'["file:///", "{address}"]')
        addresses = [f"{address}/{file.relative_to(videos)}" for file in files]
        lines = ["path,label", *(f"{name},ab" for name in addresses), f"{address}/gone.mp4,ab"]
        (tmp_path / "list.csv").write_text("\n".join(lines))
        built = build(f"file://{tmp_path}/list.csv", f"file://{tmp_path}/c.parquet", roots, BuildOptions())
        errors = {row.uri: row.error for row in built.catalog.rows}
        assert [errors[name] for name in addresses] == [None] * 3
        assert (errors[f"{address}/gone.mp4"] or "").startswith("missing")
        local = dict(zip(addresses, files, strict=True))
        clip = essp.Clip(frames=3, stride=2, size=32)
        options = in_groups({"clip": clip, "batch_size": 3, "validation_fraction": 0, "clips_per_epoch": 3})
        with essp.Loader(tmp_path / "c.parquet", **options) as loader:
            (batch,) = loader
            for frames, uri, first in zip(batch.frames, batch.meta["uri"], batch.meta["first_frame"], strict=True):
                assert np.array_equal(frames.numpy(), essp.decode(local[uri], first, clip=loader.clip))


class Outage:
    """A server does not answer the next requests."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def begins_with(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, at the first of which the server goes away."""
        calls = count()

        def called(*arguments: Any, **options: Any) -> Any:
            if not next(calls):
                self.left = 2  # fsspec asks twice
            return call(*arguments, **options)

        return called


@pytest.mark.usefixtures("fsspec_thread")
def test_a_stream_waits_for_a_store_that_goes_away_whatever_it_does(
    videos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = sorted(videos.rglob("*.mp4"))[0]
    expected = [window.frames for window in essp.stream(file, decoders=1)]
    outage = Outage()
    for of, name in ((streaming, "find"), (Prober, "read"), (Sandbox, "decode")):
        monkeypatch.setattr(of, name, outage.begins_with(getattr(of, name)))
    with http_server(videos, is_away=outage) as address:
        monkeypatch.setenv("ESSP_STORES", address)
        with essp.stream(f"{address}/{file.relative_to(videos)}", decoders=1) as stream:
            assert all(np.array_equal(window.frames, frames) for window, frames in zip(stream, expected, strict=True))
    warnings = [message for message in caplog.messages if "trying again for up to 600 s" in message]
    assert [message.partition(":")[0].split()[0] for message in warnings] == ["a", "reading", "decoding"]
    assert all("503" in message for message in warnings)


@pytest.mark.usefixtures("fsspec_thread")
@pytest.mark.parametrize(("of", "name"), [(streaming, "find"), (Prober, "read")])
def test_a_video_whose_store_stays_away_too_long_is_an_error_and_the_next_one_is_read(
    of: Any, name: str, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(videos.rglob("*.mp4"))[:2]
    outage = Outage()
    monkeypatch.setattr(of, name, outage.begins_with(getattr(of, name)))
    with http_server(videos, is_away=outage) as address:
        monkeypatch.setenv("ESSP_STORES", address)
        monkeypatch.setenv("ESSP_STORE_PATIENCE_S", "0")
        first, other = (f"{address}/{file.relative_to(videos)}" for file in files)
        stream = essp.stream([first, other], decoders=1)
        assert {window.video for window in stream} == {other}
        assert {video: type(error) for video, error in stream.errors.items()} == {first: Unavailable}

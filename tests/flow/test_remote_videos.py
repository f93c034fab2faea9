"""Videos on a web server: a list of addresses becomes a catalog, and a loader gives the frames of the very files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fsspec.asyn import get_loop

import essp
from essp.catalog.build import BuildOptions, build
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

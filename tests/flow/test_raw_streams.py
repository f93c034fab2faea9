"""GIF and raw streams, from a folder into a loop: the frames are those of a plain decode of the file."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

import essp
from essp.catalog.build import BuildOptions, build
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.loops import in_groups

FRAMES = 30
ENCODINGS = {
    "gifs/a.gif": Encoding(codec="gif", pixel_format="rgb8", fps=20),
    "raw/a.h264": Encoding(bframes=2),
    "raw/b.m4v": Encoding(codec="mpeg4", bframes=2),
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    for seed, (name, encoding) in enumerate(ENCODINGS.items()):
        (folder / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        write_video(folder / "videos" / name, numbered(FRAMES, 96, 64, seed), encoding)
    built = build(f"file://{folder}/videos", f"file://{folder}/c.parquet", ("file:///",), BuildOptions())
    found = {row.id: (row.frame_count, row.error) for row in built.catalog.rows}
    assert found == dict.fromkeys(ENCODINGS, (FRAMES, None))
    return folder / "c.parquet"


def test_decode_gives_the_frames_of_a_plain_decode(catalog: Path) -> None:
    for row in essp.open_catalog(catalog).rows:
        with av.open(row.uri.removeprefix("file://")) as container:
            plain = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
        for given in (row, row.uri):
            for start in (0, 7, 19):
                assert np.array_equal(essp.decode(given, start, frames=6, stride=2), plain[start : start + 12 : 2])


def test_a_loader_gives_the_same_frames(catalog: Path) -> None:
    rows = {row.id: row for row in essp.open_catalog(catalog).rows}
    clip = essp.Clip(frames=4, stride=3, size=40)
    seen = set()
    options = {"clip": clip, "batch_size": 3, "clips_per_epoch": 24, "validation_fraction": 0}
    with essp.Loader(catalog, **in_groups(options)) as loader:
        for batch in loader:
            for at, (video, first) in enumerate(zip(batch.meta["video"], batch.meta["first_frame"], strict=True)):
                seen.add(video)
                assert np.array_equal(batch.frames[at].numpy(), essp.decode(rows[video], first, clip=loader.clip))
    assert seen == set(ENCODINGS)

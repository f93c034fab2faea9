"""Frames of a catalog's videos become records: the frames of a plain decode; what is damaged is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from essp.catalog.build import BuildOptions as CatalogOptions
from essp.catalog.build import build as build_catalog
from essp.records.build import BuildOptions, Built, build
from essp.records.clips import places
from essp.records.sources import SourceOptions, open_source
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from essp_engine.decoding.sandbox import Outcome, Sandbox
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.command_line import essp
from tests.harness.refused import refused

pytestmark = pytest.mark.processes

STORES = Stores(("file:///",))
CHOSEN = {"cat/a.mp4": (3, 11, 18, 26), "cat/short.mp4": (0, 1, 2), "dog/b.mp4": (3, 9, 15, 21)}
"""Of four frames a video, the middles of its quarters."""
LENGTHS = {"cat/a.mp4": 30, "cat/short.mp4": 3, "dog/b.mp4": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train/` with three videos and one that is none, `test/` with one."""
    root = tmp_path_factory.mktemp("clips")
    for name, length in LENGTHS.items():
        path = root / "videos" / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(path, numbered(length, 64, 48), Encoding(gop=8, bframes=2))
    (root / "videos" / "train" / "dog" / "none.mp4").write_bytes(b"no video")
    (root / "videos" / "test" / "cat").mkdir(parents=True)
    write_video(root / "videos" / "test" / "cat" / "c.mp4", numbered(12, 64, 48))
    build_catalog(f"file://{root}/videos", f"file://{root}/catalog.parquet", ("file:///",), CatalogOptions("folders"))
    return root


def made(catalog: Path, out: Path, source: SourceOptions, options: BuildOptions = BuildOptions("raw")) -> Built:  # noqa: B008
    with open_source(catalog.as_uri(), STORES, source) as found:
        return build(found, DataSet(DirectoryStore.from_url(out.as_uri())), options)


def frames(path: Path) -> NDArray[np.uint8]:
    """All frames of a file, by PyAV alone."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def shown(out: Path) -> list[NDArray[np.uint8]]:
    reader = RecordReader(DataSet(DirectoryStore.from_url(out.as_uri())))
    rows = np.empty((len(reader), 48 * 64 * 3), np.uint8)
    assert reader.read_into(np.arange(len(reader)), rows).all()
    return list(rows.reshape(-1, 48, 64, 3))


def test_frames_are_those_of_a_plain_decode_evenly_placed(folder: Path, tmp_path: Path) -> None:
    built = made(folder / "catalog.parquet", tmp_path / "out", SourceOptions("train", frames=4))
    wanted = [
        frames(folder / "videos" / "train" / name)[place]
        for name, chosen in (
            ("cat/a.mp4", (3, 11, 18, 26)),
            ("cat/short.mp4", (0, 1, 2)),
            ("dog/b.mp4", (3, 9, 15, 21)),
        )
        for place in chosen
    ]
    assert all(np.array_equal(*pair) for pair in zip(shown(tmp_path / "out"), wanted, strict=True))
    assert built.per_class == {"cat": 7, "dog": 4}
    assert built.classes == ("cat", "dog")
    assert list(built.problems) == ["train/dog/none.mp4"]


def test_a_store_that_goes_away_for_a_while_is_waited_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decode, left = Sandbox.decode, [Unavailable("the store is away", retry_after_s=0.0)] * 9

    def away(sandbox: Sandbox, unit: DecodeSeed) -> list[Outcome]:
        if left:
            raise left.pop()
        return decode(sandbox, unit)

    monkeypatch.setattr(Sandbox, "decode", away)
    built = made(folder / "catalog.parquet", tmp_path / "out", SourceOptions("train", frames=4))
    assert built.per_class == {"cat": 7, "dog": 4}
    assert caplog.text.count("the store is away; trying again for up to 600 s") == 9


def test_distances_of_a_depth_camera_do_not_become_colours(folder: Path, tmp_path: Path) -> None:
    catalog = read_catalog(DirectoryStore.from_url(folder.as_uri()), "catalog.parquet")
    rows = [
        replace(row, notes="depth: in millimetres" if row.id == "train/cat/a.mp4" else row.notes)
        for row in catalog.rows
    ]
    write_catalog(DirectoryStore.from_url(tmp_path.as_uri()), "depth.parquet", Catalog(rows))
    built = made(tmp_path / "depth.parquet", tmp_path / "out", SourceOptions("train", frames=4))
    assert built.per_class == {"cat": 3, "dog": 4}
    assert "depth camera" in built.problems["train/cat/a.mp4"]


def test_splits_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    catalog = folder / "catalog.parquet"
    with refused("--within", "missing"):
        made(catalog, tmp_path / "out", SourceOptions())
    with refused("--within", "unknown"):
        made(catalog, tmp_path / "out", SourceOptions("validation"))
    assert made(catalog, tmp_path / "out", SourceOptions("test", frames=2)).records == 2


def test_frames_are_stored_as_jpeg_and_scaled_by_the_command(folder: Path, tmp_path: Path) -> None:
    catalog, out = str(folder / "catalog.parquet"), str(tmp_path / "out")
    line = ["records", "build", catalog, "--within", "train", "--frames-a-video", "2", "--size", "32", "--out", out]
    said = essp(*line, "--dry-run").stderr
    assert (
        "split 'train' of a catalog: 3 videos, of each 2 frames or what it has; 6 frames, 2 labels, 1 left out" in said
    )
    assert essp(*line).exit_code == 0
    assert "as in its file" in essp("records", "show", out).stdout
    with refused("--encode", "conflict"):
        essp(*line, "--append", "--encode", "keep")


def test_a_video_that_is_damaged_since_costs_its_own_frames_alone(folder: Path, tmp_path: Path) -> None:
    """One whose bytes went bad and of which the catalog has no checksums, one that is another file now, and one that is
    gone."""
    catalog = read_catalog(DirectoryStore.from_url(folder.as_uri()), "catalog.parquet")
    good = next(row for row in catalog.rows if row.id == "train/cat/a.mp4")
    data = bytearray((folder / "videos" / "train" / "cat" / "a.mp4").read_bytes())
    begin = good.keyframe_offset[2]
    data[begin : begin + 200] = b"\xff" * 200
    (tmp_path / "bad.mp4").write_bytes(data)
    store = DirectoryStore.from_url(tmp_path.as_uri())
    bad = store.head("bad.mp4")
    rows = [
        good,
        replace(good, id="bad", uri=f"file://{tmp_path}/bad.mp4", size_bytes=bad.size_bytes, etag=bad.etag, sums=b""),
        replace(good, id="changed", uri=f"file://{tmp_path}/bad.mp4"),
        replace(good, id="gone", uri=f"file://{tmp_path}/gone.mp4"),
    ]
    write_catalog(store, "catalog.parquet", Catalog(rows))
    built = made(tmp_path / "catalog.parquet", tmp_path / "out", SourceOptions(frames=6))
    left_out = Counter(name.split()[0] for name in built.problems)
    assert left_out["changed"] == left_out["gone"] == 6
    assert 1 <= left_out["bad"] < 6
    assert built.records == 24 - left_out.total()
    whole = frames(folder / "videos" / "train" / "cat" / "a.mp4")
    chosen = places(good, 6)
    wanted = whole[[place for place in chosen if f"bad frame {place}" not in built.problems] + chosen]
    assert all(np.array_equal(*pair) for pair in zip(shown(tmp_path / "out"), wanted, strict=True))


def test_places_of_any_length_and_number_are_different_and_inside() -> None:
    for length in (1, 2, 7, 100):
        row = VideoRow("a", "a", "", "", 0, "", first_frame=5, last_frame=4 + length)
        for count in (1, 2, 8, 200):
            found = places(row, count)
            assert len(set(found)) == len(found) == min(count, length)
            assert 0 <= found[0] <= found[-1] < length

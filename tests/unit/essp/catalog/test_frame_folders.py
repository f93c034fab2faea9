"""Folders of frames: read as videos, frame by frame what is in the files, wherever videos are read."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream

import essp
from essp.catalog.build import BuildOptions, build
from essp.catalog.sources import read_source
from essp_common.catalog.catalog import Catalog
from essp_common.errors import BadVideo
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.frames import FrameFolders, Series
from essp_common.wiring import Stores
from essp_engine.decoding.probing import ProbeOptions
from essp_engine.video.synthetic import numbered, read_number
from tests.harness.listings import errors, labelled, listing, make, problems, write
from tests.harness.refused import refused


def _picture(path: Path, picture: np.ndarray) -> None:
    """Write a picture as JPEG or PNG."""
    codec = "png" if path.suffix.lower() == ".png" else "mjpeg"
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", format="image2", options={"update": "1"}) as container:
        stream = container.add_stream(codec)
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = picture.shape[:2]
        stream.pix_fmt = "rgb24" if codec == "png" else "yuvj420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def _frames(folder: Path, name: str = "img_{:05}.jpg", count: int = 12, first: int = 1) -> list[np.ndarray]:
    """A folder of numbered frames, and what a decoder makes of each file."""
    for number, picture in enumerate(numbered(count, 96, 64)):
        _picture(folder / name.format(first + number), picture)
    paths = (folder / name.format(first + number) for number in range(count))
    return [next(av.open(str(path)).decode(video=0)).to_ndarray(format="rgb24") for path in paths]


def _built(root: Path, **options: object) -> Catalog:
    reading = BuildOptions(probe=ProbeOptions(workers=1), **options)  # type: ignore[arg-type]
    return build(f"file://{root}/sets", f"file://{root}/c.parquet", [f"file://{root}"], reading).catalog


@pytest.mark.parametrize("name", ["img_{:05}.jpg", "{}.png", "frame{}.JPEG", "1403636579{:09}.jpg"])
def test_the_frames_of_a_folder_are_those_in_its_files(tmp_path: Path, name: str) -> None:
    frames = _frames(tmp_path / "run", name)
    assert (essp.decode(tmp_path / "run", frames=12) == np.stack(frames)).all()
    assert (essp.decode(tmp_path / "run", [7, 2], frames=3, stride=2)[0] == np.stack(frames[7:12:2])).all()


@pytest.mark.parametrize("pattern", ["img_%05d.jpg", "img_*.jpg", "img_%d.jpg", "img_*.jpg@10"])
def test_a_pattern_names_one_of_several_series(tmp_path: Path, pattern: str) -> None:
    _frames(tmp_path / "run")
    _frames(tmp_path / "run", "depth_{:05}.jpg", count=3)
    assert [read_number(frame) for frame in essp.decode(f"{tmp_path}/run/{pattern}", 9, frames=3)] == [9, 10, 11]
    assert len(essp.decode(tmp_path / "run", frames=2)) == 2  # `img` is a usual name of frames
    (tmp_path / "other").mkdir()
    _frames(tmp_path / "other", "left_{}.jpg", count=2)
    _frames(tmp_path / "other", "right_{}.jpg", count=2)
    with pytest.raises(essp.ConfigError, match=r"left_\*.jpg, right_\*.jpg"):
        essp.decode(tmp_path / "other")


def test_a_folder_without_pictures_is_no_video(tmp_path: Path) -> None:
    make(tmp_path, "run/notes.txt")
    for name in ("run", "run/img_%05d.jpg", "gone"):
        with pytest.raises(BadVideo) as caught:
            essp.decode(tmp_path / name)
        assert caught.value.kind == "vanished"


def test_another_picture_makes_another_version(tmp_path: Path) -> None:
    _frames(tmp_path / "run", count=3)
    store, key = FrameFolders(DirectoryStore(str(tmp_path))), Series("run", "img_", "jpg").key
    before = store.head(key)
    with store.open(key) as file:
        assert len(file.read()) == before.size_bytes
        assert store.get(key, 100, 50) == store.get(key)[100:150]
    (tmp_path / "run" / "img_00002.jpg").unlink()
    assert store.head(key) != before


@pytest.mark.parametrize("damage", ["cut", "none", "gone"])
def test_a_damaged_frame_is_named_and_no_other_frame_comes_instead(tmp_path: Path, damage: str) -> None:
    frames = _frames(tmp_path / "run")
    path = tmp_path / "run" / "img_00004.jpg"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"no picture at all")
    if damage == "gone":
        path.unlink()
        assert (essp.decode(tmp_path / "run", 3, frames=1) == frames[4]).all()  # what is there is what counts
        return
    with pytest.raises(BadVideo):
        essp.decode(tmp_path / "run", 3, frames=1)


# --- catalogs ---


@pytest.mark.processes
def test_class_folders_of_frames_are_a_catalog(tmp_path: Path) -> None:
    frames = _frames(tmp_path / "sets" / "walk" / "a")
    _frames(tmp_path / "sets" / "walk" / "b", "{:03}.png", count=5)
    _frames(tmp_path / "sets" / "run" / "c.1", count=4)
    catalog = _built(tmp_path, fps=30.0)
    facts = [(row.id, row.class_name, row.frame_count, row.fps, row.container, row.error) for row in catalog.rows]
    assert facts == [
        ("run/c.1", "run", 4, 30.0, "frames", None),
        ("walk/a", "walk", 12, 30.0, "frames", None),
        ("walk/b", "walk", 5, 30.0, "frames", None),
    ]
    assert (essp.decode(catalog.rows[1], 4, frames=8) == np.stack(frames[4:])).all()
    loader = essp.Loader(
        tmp_path / "c.parquet", clip=essp.Clip(frames=4, size=(64, 96)), batch_size=3, validation_fraction=0
    )
    with loader:
        (batch,) = list(loader)
    for clip, first, video in zip(batch.frames.numpy(), batch.meta["first_frame"], batch.meta["video"], strict=True):
        row = next(row for row in catalog.rows if row.id == video)
        assert (clip == essp.decode(row, first, clip=loader.clip)).all()


def test_folders_of_pictures_that_may_be_images_are_taken_for_videos_only_if_said(tmp_path: Path) -> None:
    make(tmp_path / "images", "cat/1.jpg", "cat/2.jpg", "dog/1.jpg")
    make(tmp_path / "splits", "train/cat/1.jpg", "test/cat/2.jpg")
    for name in ("images", "splits"):
        with pytest.raises(essp.ConfigError, match="--source folders"):
            listing(tmp_path, name)
    assert labelled(listing(tmp_path, "images", "folders")) == {"cat": ("", ""), "dog": ("", "")}


def test_frames_have_the_layouts_of_videos(tmp_path: Path) -> None:
    make(tmp_path / "a", "train/walk/v1/img_1.jpg", "train/walk/v1/flow_x_1.jpg", "test/walk/v2/img_1.jpg")
    found = listing(tmp_path, "a")
    assert labelled(found) == {"train/walk/v1": ("walk", "train"), "test/walk/v2": ("walk", "test")}
    assert any("1 at 25" in note or "2 at 25" in note for note in found.notes)
    assert [entry.uri.rpartition("/")[2] for entry in found.entries] == ["img_*.jpg@25"] * 2
    make(tmp_path / "b", "walk/v1/left_1.jpg", "walk/v1/right_1.jpg", "walk/v2/left_1.jpg")
    assert errors(listing(tmp_path, "b")) == {
        "walk/v1": "doubled: the folder has several series of pictures (left_*.jpg, right_*.jpg); name one in a list"
    }
    make(tmp_path / "c", "7/00001.jpg", "8/00001.jpg")
    write(tmp_path / "c" / "train.json", json.dumps([{"id": "7", "template": "a"}, {"id": "8", "template": "b"}]))
    assert labelled(listing(tmp_path, "c")) == {"7": ("a", "train"), "8": ("b", "train")}


@pytest.mark.parametrize(
    ("numbers", "said"), [((1, 2, 3), False), ((0, 5, 10), False), ((1, 2, 4), True), ((7,), False)]
)
def test_missing_numbers_are_noted(tmp_path: Path, numbers: tuple[int, ...], said: bool) -> None:
    make(tmp_path, *(f"walk/v1/{number}.png" for number in numbers), "run/v2/1.png")
    assert any("numbers are missing" in note for note in listing(tmp_path).notes) is said


def test_lists_of_frames_say_how_many_there_are(tmp_path: Path) -> None:
    for number, count in enumerate((5, 6, 7, 5)):
        make(tmp_path, *(f"rawframes/v{number}/img_{frame:05}.jpg" for frame in range(1, count + 1)))
    write(tmp_path / "train_rawframes.txt", "v0 5 3\nrawframes/v1 6 0\nv2 4 1\nv3 9 1\n")
    found = listing(tmp_path, "train_rawframes.txt")
    assert labelled(found) == {
        "rawframes/v0": ("3", "train"),
        "rawframes/v1": ("0", "train"),
        "rawframes/v2": ("1", "train"),
    }
    parts = {entry.id: str(entry.segment) for entry in found.entries if entry.segment is not None}
    assert parts == {"rawframes/v2": "0-3"}
    assert errors(found) == {"rawframes/v3": "missing: 9 frames are listed, and the folder has 5"}


def test_rows_of_a_list_may_name_folders_and_rates(tmp_path: Path) -> None:
    make(tmp_path, "v0/1.jpg", "v1/img_1.jpg", "v1/mask_1.png", "v2/a.txt")
    write(tmp_path / "l.csv", "path,label,fps\nv0,a,\nv1/img_%05d.jpg,b,12.5\nv1/mask_*.png,c,50\nv2,d,1\nv3,d,1\n")
    found = read_source(f"file://{tmp_path}/l.csv", Stores([f"file://{tmp_path}"]), rate=8.0)
    names = [entry.uri.removeprefix(f"file://{tmp_path}/") for entry in found.entries if entry.error is None]
    assert names == ["v0/*.jpg@8", "v1/img_*.jpg@12.5", "v1/mask_*.png@50"]
    assert problems(found) == {"v2": "missing", "v3": "missing"}


def test_a_rate_that_is_none_is_refused(tmp_path: Path) -> None:
    with refused("--fps", "range"):
        _built(tmp_path, fps=0.0)

"""What a folder of videos is for `essp.predict`: each file has an answer, also one that no URI can name."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from essp.api.prediction import find
from essp.catalog.found import VIDEO_SUFFIXES
from essp_common.wiring import Stores


def test_a_file_whose_name_no_uri_can_have_is_said_and_not_left_out(tmp_path: Path) -> None:
    for name in (b"a b.mp4", b"bad\xff.mp4", b"n\nl.mp4", b"no-video\xff.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    (tmp_path / "gone.mp4").symlink_to("nowhere")
    rows = {row.id.removeprefix(f"{tmp_path}/"): row.error for row in find([str(tmp_path)], Stores(("file:///",)))}
    assert rows.pop("a b.mp4") is None
    assert {name: str(error).partition(":")[0] for name, error in rows.items()} == {
        "bad\\xff.mp4": "name",
        "n\\nl.mp4": "name",
        "gone.mp4": "missing",
    }


def test_a_folder_without_videos_is_said_to_be_one_with_what_is_read(tmp_path: Path) -> None:
    for name in ("empty", "others", "others/sub"):
        (tmp_path / name).mkdir()
    for name in ("others/a.txt", "others/sub/b.csv"):
        (tmp_path / name).touch()
    stores = Stores(("file:///",))
    wanted = [str(tmp_path / name) for name in ("empty", "others", "missing", "missing.mp4")]
    empty, others, missing, file = (str(row.error) for row in find(wanted, stores))
    assert empty.startswith(f"empty: there is no video in the folder {tmp_path}/empty; files with these suffixes are")
    assert f"there is no video in the folder {tmp_path}/others, only 2 other files; files with these suffixes" in others
    assert ", .mp4, " in empty and ".rmvb" not in empty and ".png" not in empty  # noqa: PT018
    assert missing == f"missing: there is no file {tmp_path}/missing"
    assert file == f"missing: there is no file {tmp_path}/missing.mp4"
    [pictures] = find(wanted[:1], stores, VIDEO_SUFFIXES | {".png"})
    assert "there is no video or picture in" in str(pictures.error)
    assert ".png" in str(pictures.error)


def test_a_folder_that_may_not_be_read_is_said_and_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: str) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "a.mp4").touch()
    monkeypatch.setattr(os, "scandir", denied)
    [row] = find([str(tmp_path)], Stores(("file:///",)))
    assert row.error == f"error: {tmp_path}/: Permission denied; give this process the right, or use another folder"


def test_folders_of_frames_are_videos_unless_a_model_takes_pictures(tmp_path: Path) -> None:
    for name in ("run/img_1.jpg", "run/img_2.jpg", "walk/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    stores = Stores(("file:///",))
    assert [(row.id, row.uri.rpartition("/")[2]) for row in find([str(tmp_path)], stores)] == [
        (f"{tmp_path}/run", "img_*.jpg@25"),
        (f"{tmp_path}/walk", "*.png@25"),
    ]
    [row] = find([f"{tmp_path}/run/img_%05d.jpg"], stores)
    assert (row.uri, row.error) == (f"file://{tmp_path}/run/img_*.jpg@25", None)
    pictures = find([f"{tmp_path}/run"], stores, VIDEO_SUFFIXES | {".jpg"})
    assert [row.id for row in pictures] == [f"{tmp_path}/run/img_1.jpg", f"{tmp_path}/run/img_2.jpg"]


def test_what_systems_put_beside_videos_has_no_answer(tmp_path: Path) -> None:
    for name in ("a.mp4", "._a.mp4", "__MACOSX/a.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [row.id for row in find([str(tmp_path)], Stores(("file:///",)))] == [f"{tmp_path}/a.mp4"]
    assert [row.error for row in find([f"{tmp_path}/._a.mp4"], Stores(("file:///",)))] == [None]

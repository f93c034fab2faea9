"""Archives of videos, as shards of WebDataset or as packed class folders: what belongs together, what is damaged."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from tests.harness.listings import errors, labelled, listing, make, problems, shard


def without_end(data: bytes) -> bytes:
    return data[: 4 * 1024]


def damaged(data: bytes) -> bytes:
    return data[:2050] + b"\xff" + data[2051:]


@pytest.mark.parametrize("change", [without_end, damaged])
def test_a_shard_whose_rest_would_be_lost_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "t.tar"
    shard(path, a__mp4=b"1", a__cls=b"x", b__mp4=b"2", b__cls=b"y")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"t\.tar cannot be read as a tar archive: byte \d+: it "):
        listing(tmp_path, "t.tar")


def test_samples_are_whole_wherever_their_parts_lie(tmp_path: Path) -> None:
    shard(
        tmp_path / "t.tar", a__cls=b"x", b__cls=b"y", a__mp4=b"1", c__mp4=b"2", c__cls=b"\xe9", d__mp4=b"", d__cls=b"z"
    )
    found = listing(tmp_path, "t.tar")
    assert labelled(found) == {"t.tar/a.mp4": ("x", "train"), "t.tar/d.mp4": ("z", "train")}
    assert errors(found) == {
        "t.tar/b": "missing: t.tar has a label for it, but no video",
        "t.tar/c.mp4": "unlabelled: its .cls is not UTF-8 text",
    }


@pytest.mark.parametrize("name", ["label", "labels", "category"])
def test_lists_of_labels_are_several(tmp_path: Path, name: str) -> None:
    texts = [json.dumps({name: value}).encode() for value in (["x", 7, "x"], ["y"], ["z", None])]
    shard(
        tmp_path / "t.tar", **dict(zip(("a__mp4", "b__mp4", "c__mp4"), (b"1", b"2", b"3"), strict=True)),
        **dict(zip(("a__json", "b__json", "c__json"), texts, strict=True)),
    )  # fmt: skip
    found = {entry.id: entry for entry in listing(tmp_path, "t.tar").entries}
    assert [(entry.class_name, entry.labels) for entry in found.values()] == [("x", ("x", "7")), ("y", ()), ("", ())]
    assert (found["t.tar/c.mp4"].error or "").startswith("unlabelled")


def test_what_macos_adds_to_archives_is_no_part_of_a_sample(tmp_path: Path) -> None:
    shard(tmp_path / "t.tar", ___a__mp4=b"mac", a__mp4=b"1", ___a__cls=b"mac", a__cls=b"x")
    found = listing(tmp_path, "t.tar")
    assert (labelled(found), errors(found)) == ({"t.tar/a.mp4": ("x", "train")}, {})


def test_a_shard_is_asked_for_once_however_many_videos_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    head = DirectoryStore.head

    def counted(store: DirectoryStore, key: str) -> ObjectInfo:
        asked.append(key)
        return head(store, key)

    monkeypatch.setattr(DirectoryStore, "head", counted)
    counts = []
    for videos in (1, 20):
        asked.clear()
        shard(tmp_path / "t.tar", **{f"{number}__mp4": b"1" for number in range(videos)})
        assert len(listing(tmp_path, "t.tar").entries) == videos
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_archives_beside_videos_are_noted(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4")
    shard(tmp_path / "t.tar", a__mp4=b"1", a__cls=b"x")
    (note,) = listing(tmp_path).notes
    assert note.startswith("the folder has archives that are not read: t.tar; ")
    said = listing(tmp_path, kind="webdataset")
    assert (labelled(said), problems(said)) == ({"t.tar/a.mp4": ("x", "train")}, {"run/1.mp4": "unlisted"})


def test_a_shard_that_is_named_may_lie_beside_videos(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    shard(tmp_path / "t.tar", a__mp4=b"1", a__cls=b"x")
    assert labelled(listing(tmp_path, "t.tar")) == {"t.tar/a.mp4": ("x", "train")}


def packed(root: Path, *names: str, archive: str = "videos.tar") -> None:
    """An archive of these files."""
    make(root / "unpacked", *names)
    with tarfile.open(root / archive, "w") as file:
        for name in names:
            file.add(root / "unpacked" / name, name)
            (root / "unpacked" / name).unlink()


def test_an_archive_of_class_folders_is_read_as_such(tmp_path: Path) -> None:
    packed(tmp_path, "UCF-101/Run/v_Run_g01_c01.avi", "UCF-101/Walk/v_Walk_g02_c01.avi", "UCF-101/readme.md")
    found = listing(tmp_path, "videos.tar")
    assert labelled(found) == {
        "videos.tar/UCF-101/Run/v_Run_g01_c01.avi": ("Run", "train"),
        "videos.tar/UCF-101/Walk/v_Walk_g02_c01.avi": ("Walk", "train"),
    }
    assert {entry.group for entry in found.entries} == {"Run_g01", "Walk_g02"}
    assert found.notes[0].startswith("no sample in the archives has a label, so the folders in them are used")


def test_archives_of_class_folders_may_be_divided_inside_or_by_their_names(tmp_path: Path) -> None:
    packed(tmp_path, "train/run/1.mp4", "val/run/2.mp4", "val/3.mp4")
    found = listing(tmp_path)
    assert labelled(found) == {
        "videos.tar/train/run/1.mp4": ("run", "train"),
        "videos.tar/val/run/2.mp4": ("run", "validation"),
    }
    assert problems(found) == {"videos.tar/val/3.mp4": "unlabelled"}
    (tmp_path / "videos.tar").unlink()
    packed(tmp_path, "run/1.mp4", archive="train.tar")
    packed(tmp_path, "run/2.mp4", "walk/3.mp4", "4.mp4", archive="test.tar")
    found = listing(tmp_path)
    assert labelled(found) == {
        "train.tar/run/1.mp4": ("run", "train"),
        "test.tar/run/2.mp4": ("run", "test"),
        "test.tar/walk/3.mp4": ("walk", "test"),
    }
    assert problems(found) == {"test.tar/4.mp4": "unlabelled"}


def test_folders_in_archives_whose_samples_have_labels_are_no_classes(tmp_path: Path) -> None:
    shard(tmp_path / "t.tar", **{"part1/a__mp4": b"1", "part1/a__cls": b"x", "part2/b__mp4": b"2"})
    found = listing(tmp_path, "t.tar")
    assert labelled(found) == {"t.tar/part1/a.mp4": ("x", "train")}
    assert problems(found) == {"t.tar/part2/b.mp4": "unlabelled"}


def test_a_text_beside_the_class_folders_of_an_archive_makes_no_samples(tmp_path: Path) -> None:
    packed(tmp_path, "UCF/Run/1.avi", "UCF/Walk/2.avi", "UCF/readme.txt")
    assert {name for name, _ in labelled(listing(tmp_path)).values()} == {"Run", "Walk"}


def test_names_of_samples_may_have_dots(tmp_path: Path) -> None:
    files = {"a.720p.mp4": b"1", "a.720p.cls": b"x", "b.1.cls": b"y", "b.1.mp4": b"2", "b.2.cls": b"z", "b.2.mp4": b"3"}
    shard(tmp_path / "t.tar", **files, **{"b.3.cls": b"w", "c.MP4": b"4", "c.Cls": b"\xef\xbb\xbfv\r\n"})
    found = listing(tmp_path)
    assert labelled(found) == {
        "t.tar/a.720p.mp4": ("x", "train"),
        "t.tar/b.1.mp4": ("y", "train"),
        "t.tar/b.2.mp4": ("z", "train"),
        "t.tar/c.MP4": ("v", "train"),
    }
    assert errors(found) == {"t.tar/b.3": "missing: t.tar has a label for it, but no video"}


def test_several_videos_of_a_sample_share_what_is_said_of_all(tmp_path: Path) -> None:
    shard(tmp_path / "t.tar", **{"a.cls": b"x", "a.left.mp4": b"1", "a.right.mp4": b"2", "a.right.txt": b"seen"})
    shard(tmp_path / "u.tar", **{"b.cls": b"y", "b.meta.json": b'{"label": "z"}', "b.mp4": b"3"})
    found = listing(tmp_path)
    assert labelled(found) == {
        "t.tar/a.left.mp4": ("x", "train"),
        "t.tar/a.right.mp4": ("x", "train"),
        "u.tar/b.mp4": ("y", "train"),
    }
    assert [entry.meta for entry in found.entries] == [{}, {"caption": "seen"}, {}]
    assert errors(found) == {}


def test_archives_of_videos_without_labels_are_noted(tmp_path: Path) -> None:
    shard(tmp_path / "t.tar", a__mp4=b"1", b__mp4=b"2")
    (note,) = listing(tmp_path, "t.tar").notes
    assert note.startswith("the videos are unlabelled, so only prediction is possible")

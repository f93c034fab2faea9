"""Lists of numbers: what each number is, is told by the videos, or the list is refused; no label is made of a count."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from essp.catalog import found as found_module
from essp.catalog.entry import Entry
from essp.catalog.sources import Listing, read_source
from essp_common.errors import ConfigError
from essp_common.wiring import Stores
from tests.harness.listings import labelled, listing, make, problems, write

Form = Literal["NFC", "NFD"]
FRAMES = {"1.mp4": 300, "2.mp4": 151, "3.mp4": 62}


def read(root: Path, text: str, frames: dict[str, int], asked: list[str] | None = None) -> Listing:
    """A list of `FRAMES`, whose files have so many frames when they are opened."""
    make(root, *FRAMES)
    write(root / "train.txt", text)

    def frame_counts(entries: Sequence[Entry]) -> list[int]:
        if asked is not None:
            asked.extend(entry.id for entry in entries)
        return [frames.get(entry.id, 0) for entry in entries]

    return read_source(f"file://{root}/train.txt", Stores([f"file://{root}"]), frame_counts=frame_counts)


def labels(found: Listing) -> dict[str, tuple[str, ...]]:
    return {entry.id: entry.labels or (entry.class_name,) for entry in found.entries if entry.error is None}


@pytest.mark.parametrize("between", [" ", "\t"])
def test_numbers_of_frames_before_labels_are_no_labels(tmp_path: Path, between: str) -> None:
    text = "1.mp4 300 5\n2.mp4 150 7\n3.mp4 62 5\n".replace(" ", between)
    found = read(tmp_path, text, FRAMES)
    assert labels(found) == {"1.mp4": ("5",), "2.mp4": ("7",), "3.mp4": ("5",)}
    (note,) = found.notes
    assert note.startswith("the first number of a line is the number of frames")


def test_several_labels_may_follow_the_number_of_frames(tmp_path: Path) -> None:
    found = read(tmp_path, "1.mp4 300 5 6\n2.mp4 151 7\n3.mp4 62 5 6\n", FRAMES)
    assert labels(found) == {"1.mp4": ("5", "6"), "2.mp4": ("7",), "3.mp4": ("5", "6")}


def test_a_line_that_has_lost_its_label_is_a_problem_and_changes_no_other(tmp_path: Path) -> None:
    found = read(tmp_path, "1.mp4 300 5\n2.mp4 151\n3.mp4 62 5\n", FRAMES)
    assert labels(found) == {"1.mp4": ("5",), "3.mp4": ("5",)}
    assert problems(found) == {"2.mp4": "unlabelled"}


@pytest.mark.parametrize("text", ["1.mp4 0 1\n2.mp4 1\n3.mp4 0 1 2\n", "1.mp4 0 1\n2.mp4 1 2\n3.mp4 0 2\n"])
def test_several_labels_are_labels(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text, FRAMES)
    assert labels(found)["1.mp4"] == ("0", "1")
    assert found.notes == ()


def test_one_label_a_line_opens_no_video(tmp_path: Path) -> None:
    asked: list[str] = []
    read(tmp_path, "1.mp4 0\n2.mp4 1\n3.mp4 0\n", FRAMES, asked)
    assert asked == []


def test_names_of_classes_tell_labels_from_frames_of_files_that_were_made_anew(tmp_path: Path) -> None:
    write(tmp_path / "label_map.txt", "run\nwalk\n")
    found = read(tmp_path, "1.mp4 600 1\n2.mp4 302 0\n3.mp4 124 1\n", FRAMES)
    assert labels(found) == {"1.mp4": ("walk",), "2.mp4": ("run",), "3.mp4": ("walk",)}


@pytest.mark.parametrize(
    ("text", "frames", "agree"),
    [
        ("1.mp4 600 5\n2.mp4 302 7\n3.mp4 124 5\n", FRAMES, "0 of the 3"),  # of files that were made anew
        ("1.mp4 0 300 5\n2.mp4 0 151 7\n3.mp4 0 62 5\n", FRAMES, "0 of the 3"),  # with a first frame, too
        ("1.mp4 600 5\n2.mp4 151 7\n3.mp4 124 5\n", FRAMES, "1 of the 3"),
        ("1.mp4 3 5\n2.mp4 4 7\n3.mp4 5 9\n", {}, "0 of the 0"),
    ],
)
def test_what_may_be_labels_or_frames_is_refused(tmp_path: Path, text: str, frames: dict[str, int], agree: str) -> None:
    with pytest.raises(ConfigError, match=rf"{agree} videos .* Write `path label`"):
        read(tmp_path, text, frames)


def test_several_maps_of_labels_are_refused_and_none_is_taken(tmp_path: Path) -> None:
    write(tmp_path / "label_map_k400.txt", "run\nwalk\n")
    write(tmp_path / "label_map_k600.txt", "walk\nrun\n")
    with pytest.raises(ConfigError, match=r"label_map_k400\.txt, label_map_k600\.txt; keep the right one"):
        read(tmp_path, "1.mp4 0\n", FRAMES)


def test_all_lists_of_a_folder_are_read_where_it_is_said(tmp_path: Path) -> None:
    make(tmp_path, "v/1.mp4", "v/2.mp4", "v/3.mp4")
    for name, text in {"train_list.txt": "1.mp4 0\n", "val.csv": "v/2.mp4 1\n", "label_map.txt": "run\nwalk\n"}.items():
        write(tmp_path / name, text)
    write(tmp_path / "readme.txt", "Two classes.\n")
    found = listing(tmp_path, kind="mmaction2")
    assert labelled(found) == {"v/1.mp4": ("run", "train"), "v/2.mp4": ("walk", "validation")}
    assert problems(found) == {"v/3.mp4": "unlisted"}
    with pytest.raises(ConfigError, match="has no text file with `path label` lines"):
        listing(tmp_path / "v", kind="mmaction2")


def test_lists_beside_class_folders_are_noted(tmp_path: Path) -> None:
    """Else the classes are folders, and nothing says that somebody has named others."""
    make(tmp_path, "v/1.mp4", "w/2.mp4")
    write(tmp_path / "notes.txt", "1.mp4 is dark\n")
    write(tmp_path / "scores.csv", "name,label\n1.mp4,2\n")
    assert listing(tmp_path).notes == ()
    write(tmp_path / "train.txt", "v/1.mp4 0\n")
    write(tmp_path / "val.tsv", "path\tlabel\nw/2.mp4\tx\n")
    (note,) = listing(tmp_path).notes
    assert note.startswith(
        "the folder has lists that are not read: train.txt, val.tsv; if they name the classes, give one"
    )


def test_of_several_lists_those_that_tell_no_split_are_noted(tmp_path: Path) -> None:
    make(tmp_path, "v/1.mp4", "v/2.mp4")
    write(tmp_path / "train.txt", "v/1.mp4 0\n")
    write(tmp_path / "holdout.txt", "v/2.mp4 0\n")
    found = read_source(f"file://{tmp_path}", Stores([f"file://{tmp_path}"]), "mmaction2")
    (note,) = found.notes
    assert note.startswith("lists without a split in their names: holdout.txt; their videos are for training")
    write(tmp_path / "test.txt", "v/2.mp4 0\n")
    (tmp_path / "holdout.txt").unlink()
    assert read_source(f"file://{tmp_path}", Stores([f"file://{tmp_path}"]), "mmaction2").notes == ()


def test_a_folder_is_no_csv_file(tmp_path: Path) -> None:
    make(tmp_path, "v/1.mp4")
    for folder in (tmp_path, tmp_path / "v"):
        with pytest.raises(ConfigError, match="is not a file; give the CSV file itself"):
            read_source(f"file://{folder}", Stores([f"file://{tmp_path}"]), "csv")


# --- names of files, in any list ---


def test_files_under_another_suffix_are_taken_where_no_other_is_meant_and_said(tmp_path: Path) -> None:
    make(tmp_path, "a/1.mp4", "a/2.mkv", "a/2.mp4", "a/3.mp4", "a/4.mp4", "b/5.mp4")
    write(tmp_path / "train.txt", "a/1.avi 0\na/2.avi 1\na/3.avi 2\na/3.mp4 3\na/4.avi 4\na/4.mov 5\na/5.avi 6\n")
    found = listing(tmp_path, "train.txt")
    assert labelled(found) == {"a/1.mp4": ("0", "train"), "a/3.mp4": ("3", "train")}
    assert set(problems(found)) == {"a/2.avi", "a/3.avi", "a/4.avi", "a/4.mov", "a/5.avi"}
    (note,) = found.notes
    assert note.startswith("1 video listed with another suffix than the file has, such as a/1.avi: a/1.mp4 is used")


@pytest.mark.parametrize(
    "lists",
    [
        {"trainlist01.txt": "Run/1.avi 1\n", "testlist01.txt": "Run/2.avi\n"},
        {"Run_test_split1.txt": "1.avi 1\n2.avi 2\n"},
    ],
    ids=["ucf101", "hmdb51"],
)
def test_data_sets_may_be_kept_in_another_format(tmp_path: Path, lists: dict[str, str]) -> None:
    make(tmp_path, "videos/Run/1.mp4", "videos/Run/2.mp4")
    for name, text in lists.items():
        write(tmp_path / name, text)
    found = listing(tmp_path)
    assert labelled(found) == {"videos/Run/1.mp4": ("Run", "train"), "videos/Run/2.mp4": ("Run", "test")}
    assert problems(found) == {}
    assert found.notes[0].startswith("2 videos listed with another suffix")


@pytest.mark.parametrize(("listed", "lying"), [("NFD", "NFC"), ("NFC", "NFD")])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.txt", "Café/né.avi 0\n"),
        ("trainlist01.txt", "Café/né.avi 1\n"),
        ("Café_test_split1.txt", "né.avi 1\n"),
        ("train.json", '[{"id": "né", "template": "x"}]'),
        ("index.csv", "path,label\nCafé/né.avi,x\nCafé/né.avi,x\nCafé/ö.avi,z\n"),
    ],
)
def test_letters_with_accents_may_be_written_in_two_ways(
    tmp_path: Path, listed: Form, lying: Form, name: str, text: str
) -> None:
    there = unicodedata.normalize(lying, "Café/né.avi")
    make(tmp_path, there)
    write(tmp_path / unicodedata.normalize(listed, name), unicodedata.normalize(listed, text))
    if name == "trainlist01.txt":
        write(tmp_path / "classInd.txt", unicodedata.normalize(listed, "1 Café\n"))
    source = "" if "list01" in name or "split" in name else name
    found = listing(tmp_path, source)
    assert list(labelled(found)) == [there]
    (entry,) = (entry for entry in found.entries if entry.error is None)
    assert entry.uri == f"file://{tmp_path}/{there}"
    assert sorted(problems(found).values()) == (["doubled", "missing"] if name == "index.csv" else [])


def test_files_of_one_name_in_many_folders_are_found_without_looking_at_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at all of one name for each line, 100,000 lines took hours."""
    read_apart: list[str] = []
    parts = found_module._parts

    def noted(path: str, suffixed: bool) -> tuple[str, ...]:
        read_apart.append(path)
        return parts(path, suffixed)

    monkeypatch.setattr(found_module, "_parts", noted)
    made = []
    for count in (20, 40):
        read_apart.clear()
        make(tmp_path / str(count), *(f"sets/{number}/rgb.mp4" for number in range(count)))
        write(tmp_path / str(count) / "train.txt", "".join(f"{number}/rgb.mp4 0\n" for number in range(count)))
        assert len(labelled(listing(tmp_path / str(count), "train.txt"))) == count
        made.append(len(read_apart))
    assert made[1] == 2 * made[0]


def test_a_list_of_paths_alone_is_data_to_predict_on(tmp_path: Path) -> None:
    make(tmp_path, "a/1.mp4", "a/2.mp4")
    write(tmp_path / "testlist.txt", "a/1.mp4\na/2.mp4\n")
    found = listing(tmp_path, "testlist.txt")
    assert labelled(found) == {"a/1.mp4": ("", "test"), "a/2.mp4": ("", "test")}
    assert any("only prediction is possible" in note for note in found.notes)
    write(tmp_path / "testlist.txt", "a/1.mp4 3\na/2.mp4\n")
    assert problems(listing(tmp_path, "testlist.txt")) == {"a/2.mp4": "unlabelled"}

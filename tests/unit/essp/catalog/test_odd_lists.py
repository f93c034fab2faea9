"""Lists of any kind that say what cannot be, or contradict themselves: each such row or list is named, and nothing is
guessed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from essp.catalog.build import _check_names
from essp_common.errors import ConfigError, EsspError
from tests.harness.listings import csv_of, errors, labelled, listing, make, one_error, problems, rows, write
from tests.unit.essp.catalog.test_data_sets import ACTIVITIES


@pytest.mark.parametrize("name", ["../x", "/data/x", "a//x", "a\x00x", "."])
@pytest.mark.parametrize("lay_out", ["mmaction2", "hmdb51", "hollywood2", "ccv", "something", "activitynet", "ucf101"])
def test_a_name_that_no_file_can_have_costs_its_own_row_alone(tmp_path: Path, name: str, lay_out: str) -> None:
    ones = " ".join("1" * 20)
    video = {"annotations": [{"segment": [0, 1], "label": "a"}]}
    lists: dict[str, dict[str, str]] = {
        "mmaction2": {"train.txt": f"{name}.mp4 0\nactioncliptrain00001.mp4 1\n"},
        "hmdb51": {"wave_test_split1.txt": f"{name} 1\nactioncliptrain00001.mp4 1\n"},
        "hollywood2": {"Run_train.txt": f"{name} 1\nactioncliptrain00001 1\n"},
        "ccv": {"trainVidID.txt": f"{name}\nactioncliptrain00001\n", "trainLabel.txt": f"{ones}\n{ones}\n"},
        "something": {"train.json": json.dumps([{"id": n, "label": "x"} for n in (name, "actioncliptrain00001")])},
        "activitynet": {"a.json": json.dumps({"database": {n: video for n in (name, "actioncliptrain00001")}})},
        "ucf101": {"trainlist01.txt": f"{name}\nx/actioncliptrain00001.mp4\n"},
    }
    make(tmp_path, "x/actioncliptrain00001.mp4")
    for file, text in lists[lay_out].items():
        write(tmp_path / file, text)
    found = listing(tmp_path, "train.txt" if lay_out == "mmaction2" else "")
    assert found.kind == lay_out
    assert one_error(found).startswith("missing: ")
    assert all(key.startswith("x/actioncliptrain00001.mp4") for key in labelled(found))
    assert labelled(found)
    _check_names(found.entries)


def test_names_that_nobody_can_read_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4", "3.mp4", "20bn/7.webm", "20bn/8.webm")
    odd = csv_of(tmp_path, 'path,label,group\n1.mp4,"a\nb",\n2.mp4,a\x00b,\n3.mp4,a,\x1b[31m\n4\x7f.mp4,a,\n')
    assert problems(odd) == {"1.mp4": "name", "2.mp4": "name", "3.mp4": "name", "4\\x7f.mp4": "missing"}
    assert "has unreadable characters" in errors(odd)["2.mp4"]
    write(
        tmp_path / "l.json",
        json.dumps([{"id": "7", "template": "\ud800", "x": 1}, {"id": "8", "template": "b", "note": "\ud800"}]),
    )
    found = listing(tmp_path, "l.json")
    assert problems(found) == {"20bn/7.webm": "name"}
    assert rows(found)["20bn/8.webm"].meta == {"note": "\ud800"}


def test_of_several_files_that_a_list_may_mean_none_is_taken(tmp_path: Path) -> None:
    make(tmp_path, "a/7.webm", "b/7.gif", "8.webm", "v/v_abc.mp4", "w/v_abc.mp4", "UCF/Run/1.avi", "copy/Run/1.avi")
    write(tmp_path / "s.json", json.dumps([{"id": "7", "label": "x"}, {"id": "8", "label": "x"}]))
    assert errors(listing(tmp_path, "s.json")) == {
        "7": "doubled: s.json names it, but it may be any of a/7.webm, b/7.gif; keep one of them"
    }
    write(tmp_path / "a.json", json.dumps(ACTIVITIES))
    assert errors(listing(tmp_path, "a.json"))["abc"].startswith(
        "doubled: a.json names it, but it may be any of v/v_abc.mp4"
    )
    write(tmp_path / "train.txt", "1.avi 0\nUCF/Run/1.avi 1\n")
    assert errors(listing(tmp_path, "train.txt"))["1.avi"].startswith(
        "doubled: train.txt names it, but it may be any of UCF/"
    )
    write(tmp_path / "trainlist01.txt", "Run/1.avi\n")
    assert errors(listing(tmp_path, kind="ucf101"))["copy/Run/1.avi"].startswith(
        "doubled: the list may also mean UCF/Run/1.avi"
    )


LISTS = {
    "validate.csv": "label,youtube_id,time_start,time_end,split\nrun,1,0,10,validate\n",
    "train.json": json.dumps([{"id": "1", "template": "x"}]),
    "activity.json": json.dumps({"database": {"1": {"subset": "training", "annotations": []}}}),
    "trainVidID.txt": "1\n",
    "run_test_split1.txt": "1.mp4 1\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_what_lies_there_and_is_in_no_list_is_a_problem(tmp_path: Path, name: str) -> None:
    make(tmp_path, "v/1.mp4", "v/2.mp4")
    write(tmp_path / name, LISTS[name])
    write(tmp_path / "trainLabel.txt", " ".join("1" * 20))
    assert errors(listing(tmp_path))["v/2.mp4"] == "unlisted: no list names it"
    if not name.endswith("ID.txt"):
        assert "v/2.mp4" not in errors(listing(tmp_path, name))  # of which the folder may hold other things as well


def test_of_several_files_that_a_list_may_mean_none_is_unlisted(tmp_path: Path) -> None:
    make(tmp_path, "a/1.webm", "b/1.mp4")
    write(tmp_path / "train.json", LISTS["train.json"])
    assert problems(listing(tmp_path)) == {"1": "doubled"}


def test_the_validation_split_of_kinetics_is_one(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    write(tmp_path / "validate.csv", LISTS["validate.csv"])
    assert labelled(listing(tmp_path)) == {"1.mp4#0-10s": ("run", "validation")}
    make(tmp_path / "folders", "train/run/1.mp4", "validate/run/2.mp4")
    assert labelled(listing(tmp_path / "folders"))["validate/run/2.mp4"] == ("run", "validation")


@pytest.mark.parametrize("text", ["", " \n\r\n", "\ufeff"])
@pytest.mark.parametrize("name", ["notes.txt", "index.csv"])
def test_a_list_without_a_line_does_no_harm(tmp_path: Path, name: str, text: str) -> None:
    make(tmp_path, "run/1.mp4")
    write(tmp_path / name, text)
    assert labelled(listing(tmp_path)) == {"run/1.mp4": ("run", "train")}
    with pytest.raises(EsspError, match=f"{name}( has no column for the videos|: it lists no video)"):
        listing(tmp_path, name)


def test_groups_and_splits_that_look_alike_are_noted(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv_of(tmp_path, "path,label,split,group\n1.mp4,a,Fold1,Jos\u00e9\n2.mp4,a,fold1,Jose\u0301\n")
    assert [note.partition(" that")[0] for note in found.notes] == ["splits", "groups"]


def test_classes_that_look_alike_are_noted(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4", "3.mp4", "4.mp4")
    found = csv_of(tmp_path, "path,label\n1.mp4,Run\n2.mp4,run\n3.mp4,caf\u00e9\n4.mp4,cafe\u0301\n")
    assert found.notes == (
        "classes that differ only in case, in blanks, in how a number is written, or in how their letters are encoded: "
        "'Run' and 'run'; 'cafe\\u0301' and 'caf\\xe9'; if they are one, give it one name",
    )
    for one, other in (("01", "1"), ("1.0", "1"), ("a  b", "a b"), ("a\u200b", "a")):
        assert len(csv_of(tmp_path, f"path,label\n1.mp4,{one}\n2.mp4,{other}\n").notes) == 1
    for one, other in (("run", "runs"), ("10", "1"), ("1.5", "1"), ("2020-01-01", "2020-1-1")):
        found = csv_of(tmp_path, f"path,label\n1.mp4,{one}\n2.mp4,{other}\n")
        assert (labelled(found)["1.mp4"][0], found.notes) == (one, ())


def test_json_without_end_in_a_folder_of_videos_does_no_harm(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4")
    write(tmp_path / "train.json", "[" * 100_000)
    assert listing(tmp_path).kind == "folders"
    with pytest.raises(ConfigError, match=r"train\.json is not JSON: it is nested too deeply"):
        listing(tmp_path, "train.json")


@pytest.mark.parametrize("name", ["train.csv", "TRAIN.TXT"])
def test_lists_without_commas_are_read_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    make(tmp_path, "v/1, 2.mp4", "v/3.mp4")
    found = csv_of(tmp_path, "v/3.mp4 1\n", name)
    assert (found.kind, labelled(found)) == ("mmaction2", {"v/3.mp4": ("1", "train")})


@pytest.mark.parametrize(
    ("name", "text"),
    [("i.csv", "path,label\n.\\w\\..\\v\\é.mp4,x\n"), ("train.txt", "v\\é.mp4 0\n"), ("trainlist01.txt", "v\\é.mp4\n")],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_lists_of_windows_are_read(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    make(tmp_path, "v/é.mp4")
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    (tmp_path / name).write_bytes(mark + text.replace("\n", "\r\n").encode(encoding))
    found = listing(tmp_path, "" if name == "trainlist01.txt" else name)
    assert (list(labelled(found)), errors(found)) == (["v/é.mp4"], {})
    assert {split for _, split in labelled(found).values()} == {"train"}

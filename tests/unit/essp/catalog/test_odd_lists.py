"""Lists that say what cannot be, or contradict themselves: each such row or list is named, and nothing is guessed."""

from __future__ import annotations

import io
import json
import math
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essp.catalog.build import _check_names, _row
from essp.catalog.sources import Listing
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import row_problems
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError, EsspError, PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from tests.unit.essp.catalog.test_data_sets import ACTIVITIES, shard, write
from tests.unit.essp.catalog.test_sources import csv_of, labelled, listing, make, problems

NO_NAME: list[Any] = [None, True, 0.5, math.nan, [], ["a"], {}, "", " "]
FILE = VideoRow("", "", "", "", 1, "", width=8, height=8, fps=25.0, frame_count=300, last_frame=299)
"""What each video is said to be: 12 s."""


def errors(found: Listing) -> dict[str, str]:
    return {entry.id: entry.error for entry in found.entries if entry.error is not None}


def one_error(found: Listing) -> str:
    (error,) = errors(found).values()
    return error


def rows(found: Listing) -> dict[str, VideoRow]:
    """What a build makes of it, if each file is `FILE`."""
    _check_names(found)
    made = [_row(entry, FILE) for entry in found.entries]
    assert not list(row_problems(Catalog(made)))
    return {row.id: row for row in made}


# --- any list ---


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
    assert one_error(found).startswith("vanished: ")
    assert all(key.startswith("x/actioncliptrain00001.mp4") for key in labelled(found))
    assert labelled(found)
    _check_names(found)


def test_names_that_nobody_can_read_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4", "3.mp4", "20bn/7.webm", "20bn/8.webm")
    odd = csv_of(tmp_path, 'path,label,group\n1.mp4,"a\nb",\n2.mp4,a\x00b,\n3.mp4,a,\x1b[31m\n4\x7f.mp4,a,\n')
    assert problems(odd) == {"1.mp4": "name", "2.mp4": "name", "3.mp4": "name", "4\\x7f.mp4": "vanished"}
    assert "has characters that nobody can read" in errors(odd)["2.mp4"]
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
        "7": "doubled: s.json names it, and it may be a/7.webm, b/7.gif; leave one of them"
    }
    write(tmp_path / "a.json", json.dumps(ACTIVITIES))
    assert errors(listing(tmp_path, "a.json"))["abc"].startswith("doubled: a.json names it, and it may be v/v_abc.mp4")
    write(tmp_path / "train.txt", "1.avi 0\nUCF/Run/1.avi 1\n")
    assert errors(listing(tmp_path, "train.txt"))["1.avi"].startswith("doubled: train.txt names it, and it may be UCF/")
    write(tmp_path / "trainlist01.txt", "Run/1.avi\n")
    assert errors(listing(tmp_path, kind="ucf101"))["copy/Run/1.avi"].startswith("doubled: UCF/Run/1.avi may be meant")


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
    assert errors(listing(tmp_path))["v/2.mp4"] == "unlisted: it lies there, and no list names it"
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
    with pytest.raises(EsspError, match=f"{name}( has no column for the videos|: no video is listed there)"):
        listing(tmp_path, name)


def test_names_of_columns_may_be_in_quotes(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    write(tmp_path / "k.csv", '"label","youtube_id","time_start","time_end"\r\n"run","1","0","10"\r\n')
    for name in ("", "k.csv"):
        assert listing(tmp_path, name).kind == "kinetics"


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
    with pytest.raises(ConfigError, match=r"train\.json is no JSON: it is nested too deeply"):
        listing(tmp_path, "train.json")


# --- CSV ---


def test_rows_and_columns_that_do_not_fit_are_named(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv_of(tmp_path, "path,label,start_s,end_s\n1.mp4,a,0,5,1,5\n2.mp4,b,0,5,,\n")
    assert errors(found) == {
        "1.mp4": "fields: line 2 has 6 fields, and there are 4 columns; put quotes around a text with a comma in it"
    }
    with pytest.raises(ConfigError, match="column 'label' is there twice"):
        csv_of(tmp_path, "path,label,Label\n1.mp4,a,b\n")
    with pytest.raises(ConfigError, match="is no CSV file: line 3: unexpected end of data"):
        csv_of(tmp_path, 'path,label,note\n1.mp4,a,"x\n2.mp4,b,y\n')
    assert labelled(csv_of(tmp_path, "path\tlabel\n1.mp4\ta\n", "i.TSV")) == {"1.mp4": ("a", "train")}
    assert problems(csv_of(tmp_path, f"path,label,end_frame\n1.mp4,a,{'9' * 400}\n")) == {
        f"1.mp4#-{'9' * 400}": "segment"
    }


def test_quotes_may_follow_a_blank_and_are_no_part_of_a_class(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv_of(tmp_path, 'path, label\n1.mp4, "run, fast"\n"2.mp4", "walk"\n')
    assert labelled(found) == {"1.mp4": ("run, fast", "train"), "2.mp4": ("walk", "train")}


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("1.mp4,run\n", "Its first line is that of a video: write the names of the columns above it"),
        ("# mine\npath,label\n1.mp4,run\n", "Its first line is a remark: remove it"),
        ("sep=;\npath;label\n1.mp4;run\n", "Its first line is a remark: remove it"),
        ("p\0a\0t\0h\0,\0x\0\n\0", "It is UTF-16 without a mark that says so: save it as UTF-8"),
    ],
)
def test_a_file_without_names_of_columns_is_refused_with_its_cure(tmp_path: Path, text: str, cure: str) -> None:
    make(tmp_path, "1.mp4")
    with pytest.raises(ConfigError, match=cure):
        csv_of(tmp_path, text)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["i.csv", "i.tsv", "I.TXT"])
def test_fields_are_separated_by_what_separates_the_names_of_the_columns(
    tmp_path: Path, name: str, delimiter: str
) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    others = ",;".replace(delimiter, "")
    lines = ["", "File_Name | label | split", f'1.mp4 | "a{others}b" | val', " ", '2.mp4 | "a|b" | test', " |  | "]
    found = csv_of(tmp_path, "\r\n".join(line.replace(" | ", delimiter) for line in lines), name)
    assert found.kind == "csv"
    assert labelled(found) == {"1.mp4": (f"a{others}b", "validation"), "2.mp4": ("a|b", "test")}
    assert not errors(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,category\n1.mp4,a\n", "there is no column `label`, .* columns with other names: category"),
        ("path,label,subset\n1.mp4,a,train\n2.mp4,a,Val\n", "all videos are for training; subset has names of splits"),
        ("path,label,class\n1.mp4,0,run\n2.mp4,1,walk\n", "those of the column `label`; `class` is handed through"),
        ("path,labels\n1.mp4,a;b\n2.mp4,a\n", "each video has one of the `labels`, such as 'a;b'"),
        ("path,label,start_time,End Time\n1.mp4,a,0,1\n", "whole videos, since start_time, end time cut nothing"),
        ("path,label\n1.mp4,NaN\n2.mp4,a\n", "classes are called NaN; if that means that a video has none"),
    ],
)
def test_columns_that_are_surely_meant_otherwise_are_noted(tmp_path: Path, text: str, said: str) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    (note,) = csv_of(tmp_path, text).notes
    assert re.search(said, note)


@pytest.mark.parametrize(
    "text",
    [
        "path,label,split,subset,start_s,end_s,start_time\n1.mp4,a,train,val,0,1,12:30\n",
        "path,label,note\n1.mp4,a,train\n2.mp4,a,by bus\n",
        "path,label,note\n1.mp4,a,\n2.mp4,a,\n",
        "path,labels\n1.mp4,a|b\n2.mp4,a;b\n",
    ],
)
def test_columns_that_may_be_anything_are_not(tmp_path: Path, text: str) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    assert csv_of(tmp_path, text).notes == ()


def test_segments_of_which_an_end_has_another_name_are_refused(tmp_path: Path) -> None:
    """As those of EPIC-Kitchens; each would reach to the end of its file."""
    make(tmp_path, "1.mp4")
    with pytest.raises(ConfigError, match=r"a column 'start_frame' and no end_frame, but stop_frame; name the one"):
        csv_of(tmp_path, "path,label,start_frame,stop_frame\n1.mp4,a,8,202\n")
    with pytest.raises(ConfigError, match=r"a column 'end_s' and no start_s, but begin_s and start_time; name the one"):
        csv_of(tmp_path, "path,label,begin_s,start_time,end_s\n1.mp4,a,1,1,2\n")
    assert labelled(csv_of(tmp_path, "path,label,start_frame,stopping\n1.mp4,a,8,2\n")) == {"1.mp4#8-": ("a", "train")}


def test_seconds_with_a_comma_are_told_so(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, "path;label;start_s;end_s\n1.mp4;a;0,5;1,5\n")
    assert one_error(found).endswith("'0,5' to '1,5' are not seconds; write a point before decimals")


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


def test_numbers_of_frames_may_be_written_as_programs_do_where_others_are_empty(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, "path,start_frame,end_frame\n1.mp4,0.0,9.0\n1.mp4,10.0,\n1.mp4,20.5,30\n")
    assert [entry.id for entry in found.entries if entry.error is None] == ["1.mp4#0-9", "1.mp4#10-"]
    assert "'20.5' to '30' are not frame numbers" in one_error(found)


@pytest.mark.parametrize("refusal", [PermanentError, ConfigError])
def test_a_file_of_which_its_server_tells_nothing_costs_its_own_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    """As one without a size, with an address that a web server calls a bad request, or with one it forbids."""
    make(tmp_path, "1.mp4", "2.mp4", "3.mp4", "2.npy")
    np.save(tmp_path / "3.npy", np.zeros(3))

    def refusing(answer: Callable[..., Any]) -> Callable[..., Any]:
        def answered(store: DirectoryStore, key: str, *more: Any) -> Any:
            if key.endswith(("1.mp4", "2.npy")):
                raise refusal(f"{key}: 400, bad request")
            return answer(store, key, *more)

        return answered

    for name in ("head", "get"):
        monkeypatch.setattr(DirectoryStore, name, refusing(getattr(DirectoryStore, name)))
    found = csv_of(tmp_path, "path,label,values:x\n1.mp4,a,\n2.mp4,a,2.npy\n3.mp4,a,3.npy\n")
    assert list(labelled(found)) == ["3.mp4"]
    assert problems(found) == {"1.mp4": "error", "2.mp4": "targets"}
    if refusal is ConfigError:
        with pytest.raises(ConfigError, match="bad request"):
            csv_of(tmp_path, "path,label\n1.mp4,a\n")


def test_the_class_is_one_of_the_labels(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv_of(tmp_path, "path,label,labels\n1.mp4,run,jump|swim|jump\n2.mp4,swim,jump|swim\n")
    assert [entry.labels for entry in found.entries] == [("run", "jump", "swim"), ("jump", "swim")]


def test_a_file_is_not_listed_under_two_names(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    names = [
        "1.mp4",
        "./1.mp4",
        f"{tmp_path}/1.mp4",
        f"{tmp_path}//v/../1.mp4",
        f"file://{tmp_path}/1.mp4",
        f"FILE://{tmp_path}/1.mp4/",
    ]
    found = csv_of(tmp_path, "path,label\n" + "".join(f"{name},run\n" for name in names))
    assert labelled(found) == {"1.mp4": ("run", "train")}
    assert set(problems(found).values()) == {"doubled"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("1.mp4,run,,\n1.mp4,walk,,\n1.mp4,run,,\n", "several classes: 'run', 'walk'"),
        ("1.mp4,run,,train\n./1.mp4,run,,test\n", "several splits: 'test', 'train'"),
        ("1.mp4,run,run|jump,\n1.mp4,run,run,\n", "several sets of labels"),
    ],
)
def test_of_a_video_of_which_a_list_says_two_things_neither_is_taken(tmp_path: Path, rows: str, said: str) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv_of(tmp_path, f"path,label,labels,split\n{rows}2.mp4,walk,,train\n")
    assert list(labelled(found)) == ["2.mp4"]
    assert set(errors(found).values()) == {f"mislabelled: the source lists it with {said}"}


def npz() -> bytes:
    written = io.BytesIO()
    np.savez(written, x=np.zeros(3))
    return written.getvalue()


def array(shape: str) -> bytes:
    """A file of `numpy.save` with such a shape in its header."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (npz(), "it holds several arrays"),
        (npz()[:99], "it is no array of NumPy"),
        (array(f"({10**15},)"), "Unable to allocate"),
        (array(f"({10**22},)"), "too large"),
        (array("(True,)"), "it is no array"),
        (array("(3"), "it is no array"),
        (array("-" * 5000 + "1"), "it is no array"),
        (b"", "it is no array"),
    ],
    ids=range(8),
)
def test_what_is_no_array_is_a_problem_of_its_row(tmp_path: Path, data: bytes, said: str) -> None:
    make(tmp_path, "1.mp4")
    (tmp_path / "x.npy").write_bytes(data)
    error = one_error(csv_of(tmp_path, "path,values:x\n1.mp4,x.npy\n"))
    assert error.startswith("targets: x.npy: ")
    assert said in error


@pytest.mark.parametrize("count", [0, 150, 298, 302, 600])
def test_names_of_frames_are_as_many_as_there_are_frames(tmp_path: Path, count: int) -> None:
    make(tmp_path, "1.mp4")
    text = "path,frame_labels\n1.mp4,names.txt\n"
    write(tmp_path / "names.txt", "a\n" * count)
    (row,) = rows(csv_of(tmp_path, text)).values()
    assert row.error == f"targets: names.txt has {count} lines, but the file has 300 frames"
    for whole in ("a\u2028b\n" * 300, "a\n" * 299):
        write(tmp_path / "names.txt", whole)
        (row,) = rows(csv_of(tmp_path, text)).values()
        assert row.error is None


@pytest.mark.parametrize(
    ("bounds", "kept"), [("0,5000", None), ("10,14.1", None), ("11,12.9", (275, 299)), ("10,", (250, 299))]
)
def test_a_segment_that_is_mostly_behind_its_file_is_a_problem(
    tmp_path: Path, bounds: str, kept: tuple[int, int] | None
) -> None:
    make(tmp_path, "1.mp4")
    (row,) = rows(csv_of(tmp_path, f"path,label,start_s,end_s\n1.mp4,a,{bounds}\n")).values()
    assert (row.error is None) == (kept is not None)
    if kept is None:
        assert row.error is not None
        assert row.error.endswith("is behind the end of the file at 12 s; without an end, it is that of the file")
    else:
        assert (row.first_frame, row.last_frame) == kept
    frames = csv_of(tmp_path, "path,label,start_frame,end_frame\n1.mp4,a,290,310\n1.mp4,b,290,309\n")
    assert [row.error is None for row in rows(frames).values()] == [False, True]


# --- lists of data sets ---


@pytest.mark.parametrize("value", NO_NAME)
def test_what_is_no_class_in_json_makes_none(tmp_path: Path, value: object) -> None:
    make(tmp_path, "7.webm", "v_abc.mp4")
    write(tmp_path / "s.json", json.dumps([{"id": "7", "template": value}]))
    assert one_error(listing(tmp_path, "s.json")) == "unlabelled: s.json has no template for it"
    annotations = [{"segment": [0, 1], "label": value}]
    write(tmp_path / "a.json", json.dumps({"database": {"abc": {"annotations": annotations}}}))
    assert one_error(listing(tmp_path, "a.json")) == (
        "segment: annotation 1 in a.json: `segment` and `label` make no sense"
    )
    shard(tmp_path / "t.tar", a__mp4=b"1", a__json=json.dumps({"label": value}).encode(), b__mp4=b"2", b__cls=b"x")
    assert errors(listing(tmp_path, "t.tar")) == {
        "t.tar/a.mp4": "unlabelled: others have a label, and none lies beside it"
    }
    write(tmp_path / "s.json", json.dumps([{"id": value, "template": "x"}]))
    with pytest.raises(ConfigError, match=r"s\.json: the `id` of entry 1 is neither text nor a number"):
        listing(tmp_path, "s.json")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        *((({"subset": value}), "split") for value in NO_NAME),
        *((({"annotations": value}), "segment") for value in (True, 7, 0.5, "ab", {"a": 1})),
        *((({"annotations": [{"segment": ends, "label": "a"}]}), "segment")
          for ends in (None, "15", {"1": 0, "5": 0}, [True, 5], ["1", "b"], [0, 10**400], [1], [1, 2, 3], [5, 1])),
    ],
)  # fmt: skip
def test_videos_of_activitynet_that_make_no_sense_are_problems(tmp_path: Path, change: Any, kind: str) -> None:
    make(tmp_path, "v_abc.mp4", "v_xyz.mp4")
    good = {"subset": "training", "annotations": [{"segment": [0, 1], "label": "a"}]}
    write(tmp_path / "a.json", json.dumps({"database": {"abc": {**good, **change}, "xyz": good}}))
    found = listing(tmp_path, "a.json")
    assert list(problems(found).values()) == [kind]
    assert labelled(found) == {"v_xyz.mp4#0-1s": ("a", "train")}


def test_an_annotation_that_makes_no_sense_costs_no_other_of_its_video(tmp_path: Path) -> None:
    make(tmp_path, "v_abc.mp4")
    annotations = [
        {"segment": [0, 2], "label": "a"},
        {"segment": [5, 1], "label": "b"},
        {"label": "c"},
        None,
        {"segment": [1, 3], "label": "d"},
    ]
    write(tmp_path / "a.json", json.dumps({"database": {"abc": {"annotations": annotations}}}))
    found = listing(tmp_path, "a.json")
    assert labelled(found) == {"v_abc.mp4#0-2s": ("a", "train"), "v_abc.mp4#1-3s": ("d", "train")}
    assert errors(found) == {
        "v_abc.mp4#annotation 2": "segment: annotation 2 in a.json: 5 to 1 holds no frame",
        "v_abc.mp4#annotation 3": "segment: annotation 3 in a.json: `segment` and `label` make no sense",
        "v_abc.mp4#annotation 4": "segment: annotation 4 in a.json: `segment` and `label` make no sense",
    }


def test_a_video_that_is_there_twice_in_one_object_is_not_lost(tmp_path: Path) -> None:
    make(tmp_path, "v_abc.mp4")
    video = '"abc": {"annotations": [{"segment": [0, 1], "label": "a"}]}'
    write(tmp_path / "a.json", f'{{"database": {{{video}, {video}}}}}')
    with pytest.raises(ConfigError, match=r"a\.json is no JSON: 'abc' is there twice in one object"):
        listing(tmp_path, "a.json")


def test_a_segment_that_is_there_twice_is_one_row(tmp_path: Path) -> None:
    make(tmp_path, "v_abc.mp4")
    annotations = [{"segment": [0, 1], "label": label} for label in "abba"]
    write(tmp_path / "a.json", json.dumps({"database": {"abc": {"annotations": annotations}}}))
    found = listing(tmp_path, "a.json")
    assert labelled(found) == {"v_abc.mp4#0-1s": ("a", "train"), "v_abc.mp4#0-1s:b": ("b", "train")}
    assert list(problems(found).values()) == ["doubled", "doubled"]


@pytest.mark.parametrize("label", ["--5", "²", "9" * 5000, "٣"])
def test_what_is_no_label_of_mmaction2_is_refused(tmp_path: Path, label: str) -> None:
    make(tmp_path, "1.mp4")
    write(tmp_path / "train.txt", f"1.mp4 {label}\n")
    with pytest.raises(ConfigError, match=r"train\.txt, line 1: .* is not `path label`"):
        listing(tmp_path, "train.txt")


def test_paths_of_mmaction2_may_be_absolute(tmp_path: Path) -> None:
    make(tmp_path, "v/1.mp4", "w/1.mp4")
    write(tmp_path / "list.txt", f"{tmp_path}/v/1.mp4 0\n/elsewhere/2.mp4 0\n")
    found = listing(tmp_path, "list.txt")
    assert labelled(found) == {"v/1.mp4": ("0", "train")}
    assert one_error(found) == f"vanished: list.txt names it, but there is no such file below {tmp_path}/"


def test_labels_of_mmaction2_that_no_class_has_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    write(tmp_path / "train.txt", "1.mp4 -1\n2.mp4 2\n")
    assert errors(listing(tmp_path, "train.txt")) == {"1.mp4": "unlabelled: line 1: there is no class -1"}
    write(tmp_path / "label_map.txt", "run\nwalk\n")
    assert errors(listing(tmp_path, "train.txt"))["2.mp4"] == "unlabelled: line 2: there is no class 2"
    for text, said in {"run\n\nwalk\n": "line 2: is empty", "run\nrun\n": "line 2: 'run' is there twice"}.items():
        write(tmp_path / "label_map.txt", text)
        with pytest.raises(ConfigError, match=rf"label_map\.txt, {said}; write a line for each class"):
            listing(tmp_path, "train.txt")


@pytest.mark.parametrize("bounds", ["nan,5", "1,nan", "-inf,5", "1,inf", "1,1e400", "5,1", "5,5", "-5,1", "x,1", ","])
def test_rows_of_kinetics_that_hold_no_frame_are_problems(tmp_path: Path, bounds: str) -> None:
    make(tmp_path, "abc.mp4", "xyz.mp4")
    text = f"label,youtube_id,time_start,time_end\nrun,abc,{bounds}\nrun,xyz,1,5\nrun,,1,5\nrun,xyz,1,5,6\n"
    found = csv_of(tmp_path, text)
    assert labelled(found) == {"xyz.mp4#1-5s": ("run", "train")}
    assert problems(found) == {"abc": "segment", "index.csv line 4": "unnamed", "xyz": "segment"}
    assert errors(found)["abc"].endswith("(index.csv, line 2)")
    assert "line 5 has 5 fields" in errors(found)["xyz"]


UCF = {"trainlist01.txt": "Run/a.avi 1\nWalk/b.avi 2\n", "testlist01.txt": "", "classInd.txt": "1 Run\n2 Walk\n"}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("testlist01.txt", "Run/a.avi\n", "split: testlist01.txt names it, and trainlist01.txt, too"),
        (
            "trainlist01.txt",
            "Run/a.avi 3\n",
            "mislabelled: trainlist01.txt gives it label 3 (not in classInd.txt), but it lies in Run",
        ),
    ],
)
def test_lists_of_ucf101_that_contradict_each_other_are_named(tmp_path: Path, file: str, text: str, said: str) -> None:
    make(tmp_path, "Run/a.avi", "Walk/b.avi")
    for name, content in {**UCF, file: text}.items():
        write(tmp_path / name, content)
    assert errors(listing(tmp_path))["Run/a.avi"] == said


@pytest.mark.parametrize("line", ["² Run", "Run 1", "1", "9999999999 Run", "1 Walk\n1 Run"])
def test_an_index_of_ucf101_that_numbers_no_classes_is_refused(tmp_path: Path, line: str) -> None:
    make(tmp_path, "Run/a.avi")
    for name, content in {**UCF, "classInd.txt": line}.items():
        write(tmp_path / name, content)
    with pytest.raises(
        ConfigError, match=r"classInd\.txt: .* is (not `number class`|another name for a number before)"
    ):
        listing(tmp_path)


def test_a_mark_of_its_encoding_at_the_begin_of_a_list_is_no_part_of_a_name(tmp_path: Path) -> None:
    make(tmp_path, "actioncliptrain00001.avi")
    write(tmp_path / "Run_train.txt", "\ufeffactioncliptrain00001 1\n")
    assert labelled(listing(tmp_path)) == {"actioncliptrain00001.avi": ("Run", "train")}


@pytest.mark.parametrize("mark", ["", " yes", " 2", " 1 1", "\t1x"])
def test_marks_of_hollywood2_are_one_of_two(tmp_path: Path, mark: str) -> None:
    make(tmp_path, "actioncliptrain00001.avi")
    write(tmp_path / "Run_train.txt", f"actioncliptrain00001{mark}\n")
    with pytest.raises(ConfigError, match=r"Run_train\.txt: .* is not `clip 1` or `clip -1`"):
        listing(tmp_path)


def test_clips_of_which_lists_disagree_are_problems(tmp_path: Path) -> None:
    make(tmp_path, *(f"actioncliptrain0000{number}.avi" for number in (1, 2, 3)))
    write(tmp_path / "Run_train.txt", "actioncliptrain00001\t1\nactioncliptrain00002 1\nactioncliptrain00003 1\n")
    write(tmp_path / "Eat_test.txt", "actioncliptrain00001 1\n")
    write(tmp_path / "sub/Run_train.txt", "actioncliptrain00002 -1\n")
    found = listing(tmp_path)
    assert problems(found) == {"actioncliptrain00001.avi": "split", "actioncliptrain00002.avi": "mislabelled"}
    assert labelled(found) == {"actioncliptrain00003.avi": ("Run", "train")}


@pytest.mark.parametrize("mark", ["x", "2", "0.5", "nan", "-1"])
def test_marks_of_ccv_are_zero_or_one(tmp_path: Path, mark: str) -> None:
    make(tmp_path, "a.mp4")
    write(tmp_path / "trainVidID.txt", "a\n")
    write(tmp_path / "trainLabel.txt", f"{mark}{' 0' * 19}\n")
    with pytest.raises(ConfigError, match=rf"trainLabel\.txt, line 1: '{mark}' is neither 0 nor 1"):
        listing(tmp_path)


@pytest.mark.parametrize("frames", ["0-95", "95-1", "-5-9", "1.5-9.5", "x", "", "1-", "9" * 400 + "-" + "9" * 400])
def test_sequences_of_kth_that_are_no_frames_are_problems(tmp_path: Path, frames: str) -> None:
    make(tmp_path, "person01_boxing_d1.avi")
    write(tmp_path / "00sequences.txt", f"person01_boxing_d1 frames 1-5, {frames}, 7-9, \n")
    found = listing(tmp_path)
    assert set(labelled(found)) == {"person01_boxing_d1.avi#0-4", "person01_boxing_d1.avi#6-8"}
    assert one_error(found).startswith("segment: 00sequences.txt: ")


# --- archives ---


def test_sequences_of_kth_without_a_video_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "boxing/person01_boxing_d1_uncomp.avi")
    write(tmp_path / "00sequences.txt", "person01_boxing_d1\tframes\t1-9\nperson02_boxing_d1\tframes\t1-9\n")
    assert problems(listing(tmp_path)) == {"person02_boxing_d1": "vanished"}


def test_a_few_other_videos_leave_a_folder_of_kth_one(tmp_path: Path) -> None:
    make(tmp_path, "intro.mp4", "boxing/person01_boxing_d1_uncomp.avi", "boxing/person11_boxing_d1_uncomp.avi")
    found = listing(tmp_path)
    assert found.kind == "kth"
    assert {split for _, split in labelled(found).values()} == {"validation", "train"}
    assert errors(found) == {"intro.mp4": "unlabelled: its name is not personNN_ACTION_dN"}
    make(tmp_path, "more/1.mp4", "more/2.mp4")
    assert listing(tmp_path).kind == "folders"


def test_lists_of_ccv_without_labels_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    for name, text in (("trainVidID", "1"), ("trainLabel", " ".join("1" * 20)), ("testVidID", "2")):
        write(tmp_path / f"{name}.txt", text)
    with pytest.raises(ConfigError, match=r"testVidID\.txt is there without testlabel\.txt"):
        listing(tmp_path)


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


def test_samples_whose_parts_lie_apart_or_are_no_text_are_problems(tmp_path: Path) -> None:
    shard(
        tmp_path / "t.tar", a__cls=b"x", b__cls=b"y", a__mp4=b"1", c__mp4=b"2", c__cls=b"\xe9", d__mp4=b"", d__cls=b"z"
    )
    found = listing(tmp_path, "t.tar")
    assert labelled(found) == {"t.tar/d.mp4": ("z", "train")}
    assert errors(found) == {
        "t.tar/a.mp4": "unlabelled: others have a label, and none lies beside it",
        "t.tar/b": "vanished: t.tar has a label for it, and no video",
        "t.tar/c.mp4": "unlabelled: its .cls is not UTF-8 text",
    }


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
    assert note.startswith("beside the videos lie archives that are not looked into: t.tar; ")
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
    assert found.notes[0].startswith("no video in the archives has a label beside it, so the folders in them are taken")


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
    assert errors(found) == {"t.tar/b.3": "vanished: t.tar has a label for it, and no video"}


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
    assert note.startswith("the videos have no labels, so they can only be predicted on")

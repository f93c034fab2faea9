"""CSV files that say what cannot be, or contradict themselves: each such row or file is named, nothing is guessed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from essp_common.errors import ConfigError, PermanentError
from essp_common.objects.directory import DirectoryStore
from tests.harness.listings import csv_of, errors, labelled, listing, make, one_error, problems, rows, write


def test_names_of_columns_may_be_in_quotes(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    write(tmp_path / "k.csv", '"label","youtube_id","time_start","time_end"\r\n"run","1","0","10"\r\n')
    for name in ("", "k.csv"):
        assert listing(tmp_path, name).kind == "kinetics"


def test_rows_and_columns_that_do_not_fit_are_named(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv_of(tmp_path, "path,label,start_s,end_s\n1.mp4,a,0,5,1,5\n2.mp4,b,0,5,,\n")
    assert errors(found) == {
        "1.mp4": "fields: line 2 has 6 fields, and there are 4 columns; put quotes around a text with a comma in it"
    }
    with pytest.raises(ConfigError, match="column 'label' is there twice"):
        csv_of(tmp_path, "path,label,Label\n1.mp4,a,b\n")
    with pytest.raises(ConfigError, match="is not a CSV file: line 3: unexpected end of data"):
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
        ("1.mp4,run\n", "Its first line already describes a video: write the column names above it"),
        ("# mine\npath,label\n1.mp4,run\n", "Its first line is a comment: remove it"),
        ("sep=;\npath;label\n1.mp4;run\n", "Its first line is a comment: remove it"),
        ("p\0a\0t\0h\0,\0x\0\n\0", "It is UTF-16 without a byte order mark: save it as UTF-8"),
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
        ("path,label,class\n1.mp4,0,run\n2.mp4,1,walk\n", "column `label` has the classes; the column `class` is kept"),
        ("path,labels\n1.mp4,a;b\n2.mp4,a\n", "each video has one of the `labels`, such as 'a;b'"),
        (
            "path,label,start_time,End Time\n1.mp4,a,0,1\n",
            "whole videos, because start_time, end time cannot define segments",
        ),
        ("path,label\n1.mp4,NaN\n2.mp4,a\n", "classes are called NaN; if that means that a video has no class"),
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
    with pytest.raises(ConfigError, match=r"a column 'start_frame' but no end_frame; if the values are in stop_frame"):
        csv_of(tmp_path, "path,label,start_frame,stop_frame\n1.mp4,a,8,202\n")
    with pytest.raises(
        ConfigError, match=r"a column 'end_s' but no start_s; if the values are in begin_s or start_time"
    ):
        csv_of(tmp_path, "path,label,begin_s,start_time,end_s\n1.mp4,a,1,1,2\n")
    assert labelled(csv_of(tmp_path, "path,label,start_frame,stopping\n1.mp4,a,8,2\n")) == {"1.mp4#8-": ("a", "train")}


def test_seconds_with_a_comma_are_told_so(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, "path;label;start_s;end_s\n1.mp4;a;0,5;1,5\n")
    assert one_error(found).endswith("'0,5' to '1,5' are not seconds; write decimals with a point")


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
        (npz()[:99], "it is not a NumPy array"),
        (array(f"({10**15},)"), "Unable to allocate"),
        (array(f"({10**22},)"), "too large"),
        (array("(True,)"), "it is not a NumPy array"),
        (array("(3"), "it is not a NumPy array"),
        (array("-" * 5000 + "1"), "it is not a NumPy array"),
        (b"", "it is not a NumPy array"),
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
        assert row.error.endswith(
            "is after the end of the file at 12 s; without an end, the segment ends with the file"
        )
    else:
        assert (row.first_frame, row.last_frame) == kept
    frames = csv_of(tmp_path, "path,label,start_frame,end_frame\n1.mp4,a,290,310\n1.mp4,b,290,309\n")
    assert [row.error is None for row in rows(frames).values()] == [True, False]


def test_a_row_without_a_path_does_not_hide_a_column_of_splits(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, "path,label,part\n1.mp4,a,train\n,b,test\n")
    assert errors(found) == {"line 3": "unnamed: line 3 does not name a file"}
    assert any("part has names of splits" in note for note in found.notes)


@pytest.mark.parametrize("column", ["path", "label", "split", "start_s", "group"])
def test_a_column_of_bytes_is_named_with_the_remedy(tmp_path: Path, column: str) -> None:
    """Some programs store texts in Parquet without saying that they are texts."""
    make(tmp_path, "1.mp4")
    row = {"path": "1.mp4", "label": "a", "split": "train", "start_s": "0", "group": "g"}
    table = {name: [text.encode() if name == column else text] for name, text in row.items()}
    pq.write_table(pa.table(table), tmp_path / "list.parquet")
    with pytest.raises(ConfigError, match=f"column '{column}' has bytes; write it as text"):
        listing(tmp_path, "list.parquet")

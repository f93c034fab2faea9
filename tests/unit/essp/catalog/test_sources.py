"""Sources: every video that folders, UCF-101 lists or a CSV file name becomes an entry, labelled or with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.catalog.entry import Segment
from essp.catalog.sources import Kind, Listing, read_source
from essp_common.errors import ConfigError, NotFound
from essp_common.wiring import Stores


def listing(root: Path, name: str = "", kind: Kind = "auto", split: int = 1) -> Listing:
    return read_source(f"file://{root / name}" if name else f"file://{root}", Stores([f"file://{root}"]), kind, split)


def labelled(found: Listing) -> dict[str, tuple[str, str]]:
    """Usable entries: id -> class and split."""
    return {e.id: (e.class_name, e.split) for e in found.entries if e.error is None}


def problems(found: Listing) -> dict[str, str]:
    """Unusable entries: id -> kind of the problem."""
    return {e.id: e.error.partition(":")[0] for e in found.entries if e.error is not None}


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def test_class_folders_without_splits_are_all_for_training(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4", "run/deep/er/2.AVI", "walk/ü 3.webm", "walk/notes.txt", "walk/.hidden.mp4", "README")
    found = listing(tmp_path)
    assert found.kind == "folders"
    assert labelled(found) == {
        "run/1.mp4": ("run", "train"),
        "run/deep/er/2.AVI": ("run", "train"),
        "walk/ü 3.webm": ("walk", "train"),
    }
    assert found.ignored == 2
    (entry,) = (e for e in found.entries if e.id == "run/1.mp4")
    assert entry.uri == f"file://{tmp_path}/run/1.mp4"
    assert entry.size_bytes == len("run/1.mp4")
    assert entry.etag


def test_split_folders_are_recognised_by_name(tmp_path: Path) -> None:
    make(tmp_path, "Train/run/1.mp4", "val/run/2.mp4", "TEST/run/3.mp4", "test/walk/sub/4.mp4")
    assert labelled(listing(tmp_path)) == {
        "Train/run/1.mp4": ("run", "train"),
        "val/run/2.mp4": ("run", "validation"),
        "TEST/run/3.mp4": ("run", "test"),
        "test/walk/sub/4.mp4": ("walk", "test"),
    }


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path, "bus/1.mp4", "train/2.mp4")
    assert labelled(listing(tmp_path)) == {"bus/1.mp4": ("bus", "train"), "train/2.mp4": ("train", "train")}


def test_videos_beside_class_or_split_folders_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "train/run/1.mp4", "extra/2.mp4", "3.mp4")
    assert problems(listing(tmp_path)) == {"extra/2.mp4": "unlabelled", "3.mp4": "unlabelled"}


def test_a_folder_of_videos_alone_is_unlabelled(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    assert labelled(listing(tmp_path)) == {"1.mp4": ("", ""), "2.mp4": ("", "")}


def test_a_source_without_videos_is_not_found(tmp_path: Path) -> None:
    make(tmp_path, "notes.txt")
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound, match="no video files there"):
            read_source(f"file://{root}", Stores([f"file://{tmp_path}"]))


@pytest.fixture
def ucf(tmp_path: Path) -> Path:
    make(tmp_path, *(f"UCF-101/{name}" for name in ("Run/v_Run_g01.avi", "Run/v_Run_g02.avi", "Walk/v_Walk_g01.avi")))
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "classInd.txt").write_text("1 Run\n2 Walk\n")
    (lists / "trainlist01.txt").write_text("Run/v_Run_g01.avi 1\r\nWalk/v_Walk_g01.avi 2\r\n")
    (lists / "testlist01.txt").write_text("Run/v_Run_g02.avi\n")
    (lists / "trainlist02.txt").write_text("Run/v_Run_g02.avi 1\nWalk/v_Walk_g01.avi 1\nRun/v_Run_g09.avi 1\n")
    (lists / "testlist02.txt").write_text("")
    return tmp_path


def test_ucf101_lists_give_the_split(ucf: Path) -> None:
    found = listing(ucf)
    assert found.kind == "ucf101"
    assert found.ignored == 0
    assert labelled(found) == {
        "UCF-101/Run/v_Run_g01.avi": ("Run", "train"),
        "UCF-101/Run/v_Run_g02.avi": ("Run", "test"),
        "UCF-101/Walk/v_Walk_g01.avi": ("Walk", "train"),
    }


def test_ucf101_lists_that_do_not_fit_the_videos_are_problems(ucf: Path) -> None:
    found = listing(ucf, split=2)
    assert labelled(found) == {
        "UCF-101/Run/v_Run_g01.avi": ("Run", ""),
        "UCF-101/Run/v_Run_g02.avi": ("Run", "train"),
    }
    assert problems(found) == {"UCF-101/Walk/v_Walk_g01.avi": "mislabelled", "Run/v_Run_g09.avi": "vanished"}


def test_a_ucf101_division_that_is_not_there_is_refused(ucf: Path) -> None:
    with pytest.raises(ConfigError, match="divisions found: 1, 2"):
        listing(ucf, split=3)
    with pytest.raises(ConfigError, match="divisions found: none"):
        listing(ucf, "UCF-101", kind="ucf101")


def test_the_kind_can_be_said(ucf: Path) -> None:
    found = listing(ucf, "UCF-101", kind="folders")
    assert labelled(found)["Run/v_Run_g01.avi"] == ("Run", "train")


def csv_of(root: Path, text: str, name: str = "index.csv") -> Listing:
    (root / name).write_text(text, encoding="utf-8")
    return listing(root, name)


def test_csv_rows_name_file_label_and_split(tmp_path: Path) -> None:
    make(tmp_path, "v/1.mp4", "v/2, b.mp4", "v/3.mp4")
    absolute = tmp_path / "v" / "3.mp4"
    text = f'\ufeffnote, Video ,class,split\nx,v/1.mp4,run,val\n,"./v/2, b.mp4",walk,\n,{absolute},run,test\n\n'
    found = csv_of(tmp_path, text)
    assert found.kind == "csv"
    assert labelled(found) == {
        "v/1.mp4": ("run", "validation"),
        "v/2, b.mp4": ("walk", ""),
        "v/3.mp4": ("run", "test"),
    }
    assert all(e.size_bytes and e.etag for e in found.entries)


def test_csv_without_label_or_split_columns(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    assert labelled(csv_of(tmp_path, "file\n1.mp4\n")) == {"1.mp4": ("", "train")}
    assert labelled(csv_of(tmp_path, "path\tlabel\n1.mp4\trun, fast\n", "i.tsv")) == {"1.mp4": ("run, fast", "train")}


def test_csv_segments_in_seconds_and_in_frames(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    seconds = csv_of(tmp_path, "path,label,start_s,end_s\n1.mp4,a,0,1.5\n1.mp4,b,1.5,\n1.mp4,c,,\n")
    assert [(e.id, e.segment) for e in seconds.entries] == [
        ("1.mp4#0-1.5s", Segment(0.0, 1.5, "s")),
        ("1.mp4#1.5-s", Segment(1.5, None, "s")),
        ("1.mp4", None),
    ]
    frames = csv_of(tmp_path, "path,label,start_frame,end_frame\n1.mp4,a,5,5\n1.mp4,b,,20\n")
    assert [(e.id, e.segment) for e in frames.entries] == [
        ("1.mp4#5-5", Segment(5, 5, "frame")),
        ("1.mp4#0-20", Segment(0, 20, "frame")),
    ]


@pytest.mark.parametrize("bounds", ["2,1", "1,1", "-1,2", "nan,2", "0,inf", "one,2"])
def test_csv_segments_that_hold_no_frame_are_problems(tmp_path: Path, bounds: str) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, f"path,label,start_s,end_s\n1.mp4,a,{bounds}\n")
    assert list(problems(found).values()) == ["segment"]


def test_csv_rows_that_make_no_sense_are_problems_with_their_line(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    text = "path,label\n1.mp4,a\nmissing.mp4,a\n,a\n1.mp4,\n1.mp4,b\n/etc/passwd,a\n"
    found = csv_of(tmp_path, text)
    assert labelled(found) == {"1.mp4": ("a", "train")}
    assert problems(found) == {
        "missing.mp4": "vanished",
        "line 4": "unnamed",
        "1.mp4@2": "doubled",
        "1.mp4@3": "doubled",
        "file:///etc/passwd": "vanished",
    }
    reasons = " ".join(e.error or "" for e in found.entries)
    assert "no configured store" in reasons


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("name,label", "no column for the videos .* its columns: name, label"),
        ("path,start,end", "column 'start' has no unit; name it start_s or start_frame"),
        ("path,start_s,end_frame", "both in seconds and in frames"),
    ],
)
def test_csv_columns_that_make_no_sense_are_refused(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        csv_of(tmp_path, f"{header}\n1,2,3\n")


def test_csv_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "i.csv").write_bytes(b"path\n\xff\xfe.mp4\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        listing(tmp_path, "i.csv")

"""Sources: every video that folders, UCF-101 lists or a CSV file name becomes an entry, labelled or with a reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from essp.catalog.entry import Segment
from essp.catalog.sources import read_source
from essp.uris import listed_uri
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.wiring import Stores
from tests.harness.listings import csv_of, labelled, listing, make, problems, write
from tests.harness.refused import refused


def test_class_folders_without_splits_are_all_for_training(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4", "run/deep/er/2.AVI", "walk/ü 3.webm", "walk/notes.txt", "walk/.hidden.mp4", "README")
    found = listing(tmp_path)
    assert found.kind == "folders"
    assert labelled(found) == {
        "run/1.mp4": ("run", "train"),
        "run/deep/er/2.AVI": ("run", "train"),
        "walk/ü 3.webm": ("walk", "train"),
    }
    assert found.ignored == {".txt": 1, "no suffix": 1}
    (entry,) = (e for e in found.entries if e.id == "run/1.mp4")
    assert entry.uri == f"file://{tmp_path}/run/1.mp4"
    assert entry.size_bytes == len("run/1.mp4")
    assert entry.etag


@pytest.mark.parametrize("beside", ["__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", ".trash"])
def test_folders_that_systems_add_are_no_classes(tmp_path: Path, beside: str) -> None:
    make(tmp_path, "run/1.mp4", "run/._1.mp4", f"{beside}/run/1.mp4", f"run/{beside}/2.mp4", "run/MACOSX/3.mp4")
    make(tmp_path, "walk/4.mp4")
    (tmp_path / beside / "run" / "gone.mp4").symlink_to("nowhere")
    found = listing(tmp_path)
    assert list(labelled(found)) == ["run/1.mp4", "run/MACOSX/3.mp4", "walk/4.mp4"]
    assert (problems(found), found.notes) == ({}, ())


@pytest.mark.parametrize("suffix", ["3g2", "F4V", "m2t", "mp4v", "MPE", "qt", "rmvb", "hevc", "m2v", "y4m"])
def test_files_with_rare_suffixes_are_videos(tmp_path: Path, suffix: str) -> None:
    make(tmp_path, f"run/1.{suffix}", f"run/1.{suffix}.part")
    found = listing(tmp_path)
    assert list(labelled(found)) == [f"run/1.{suffix}"]
    assert found.ignored == {".part": 1}


def test_split_folders_are_recognised_by_name(tmp_path: Path) -> None:
    make(tmp_path, "Train/run/1.mp4", "val/run/2.mp4", "TEST/run/3.mp4", "test/walk/sub/4.mp4")
    assert labelled(listing(tmp_path)) == {
        "Train/run/1.mp4": ("run", "train"),
        "val/run/2.mp4": ("run", "validation"),
        "TEST/run/3.mp4": ("run", "test"),
        "test/walk/sub/4.mp4": ("walk", "test"),
    }


def test_folders_whose_names_hold_that_of_a_split_are_splits_if_all_do(tmp_path: Path) -> None:
    """Kinetics is often kept so; all its videos were for training, in the classes train_256 and val_256."""
    make(tmp_path, "train_256/run/1.mp4", "train_256/walk/2.mp4", "val_256/run/3.mp4", "val_256/walk/4.mp4")
    found = listing(tmp_path)
    assert labelled(found) == {
        "train_256/run/1.mp4": ("run", "train"),
        "train_256/walk/2.mp4": ("walk", "train"),
        "val_256/run/3.mp4": ("run", "validation"),
        "val_256/walk/4.mp4": ("walk", "validation"),
    }
    assert found.notes == ("top folders are used as splits: train_256 as train, val_256 as validation",)
    make(tmp_path / "groups", *(f"{name}_256/g/{what}/{name}.mp4" for name in ("train", "val") for what in "ab"))
    below = listing(tmp_path / "groups", kind="two-level")
    assert labelled(below)["val_256/g/a/val.mp4"] == ("a", "validation")


@pytest.mark.parametrize(
    "names",
    [
        ("crash test/a/1.mp4", "crash test/b/2.mp4", "train ride/a/3.mp4", "waves/b/4.mp4"),  # one has no such name
        ("crash test/a/1.mp4", "test drive/b/2.mp4"),  # all are of one split
        ("crash test/1.mp4", "train ride/2.mp4"),  # nothing lies below
    ],
)
def test_classes_may_have_a_word_that_is_a_split(tmp_path: Path, names: tuple[str, ...]) -> None:
    make(tmp_path, *names)
    assert labelled(listing(tmp_path)) == {name: (name.partition("/")[0], "train") for name in names}


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make(tmp_path, "bus/1.mp4", "train/2.mp4")
    assert labelled(listing(tmp_path)) == {"bus/1.mp4": ("bus", "train"), "train/2.mp4": ("train", "train")}


def test_videos_beside_class_or_split_folders_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "train/run/1.mp4", "extra/2.mp4", "3.mp4")
    assert problems(listing(tmp_path)) == {"extra/2.mp4": "unlabelled", "3.mp4": "unlabelled"}


@pytest.mark.parametrize("stray", ["train/9.mp4", "test/9.mp4"])
def test_a_video_beside_the_class_folders_of_a_split_makes_no_classes_of_splits(tmp_path: Path, stray: str) -> None:
    make(tmp_path, "train/run/1.mp4", "train/8.mp4", "test/run/2.mp4", stray)
    found = listing(tmp_path)
    assert labelled(found) == {"train/run/1.mp4": ("run", "train"), "test/run/2.mp4": ("run", "test")}
    assert problems(found) == dict.fromkeys(("train/8.mp4", stray), "unlabelled")
    make(tmp_path, "train/sport/run/3.mp4", "test/sport/run/4.mp4")
    assert labelled(listing(tmp_path, kind="two-level")) == {
        "train/sport/run/3.mp4": ("run", "train"),
        "test/sport/run/4.mp4": ("run", "test"),
    }


def test_splits_without_class_folders_are_a_note_and_so_are_those_below_classes(tmp_path: Path) -> None:
    make(tmp_path / "a", "train/1.mp4", "test/2.mp4")
    (note,) = listing(tmp_path, "a").notes
    assert note.startswith("classes are named like splits: test, train; if they are splits, put their videos in class")
    make(tmp_path / "b", "run/train/1.mp4", "run/Test/2.mp4", "walk/train/sub/3.mp4")
    (note,) = listing(tmp_path, "b").notes
    assert "inside class folders, so they are not used as splits: run/Test, run/train, walk/train; give" in note
    make(tmp_path / "c", "train/run/deep/1.mp4", "val/run/2.mp4")
    assert not listing(tmp_path, "c").notes


def test_that_all_videos_have_one_class_is_noted(tmp_path: Path) -> None:
    make(tmp_path, "data/run/1.mp4", "data/walk/2.mp4")
    (note,) = listing(tmp_path).notes
    assert note.startswith("all videos have one class, 'data', the name of their folder; if the folders")
    make(tmp_path, "more/3.mp4")
    assert listing(tmp_path).notes == ()


def test_a_folder_of_videos_alone_is_unlabelled(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    assert labelled(listing(tmp_path)) == {"1.mp4": ("", ""), "2.mp4": ("", "")}


def test_a_source_without_videos_is_not_found(tmp_path: Path) -> None:
    make(tmp_path, "notes.txt")
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound, match=r"it has no video files|there is no such folder, or it is empty"):
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
    assert found.ignored == {}
    assert labelled(found) == {
        "UCF-101/Run/v_Run_g01.avi": ("Run", "train"),
        "UCF-101/Run/v_Run_g02.avi": ("Run", "test"),
        "UCF-101/Walk/v_Walk_g01.avi": ("Walk", "train"),
    }
    assert {entry.id.rpartition("/")[2]: entry.meta for entry in found.entries} == {
        "v_Run_g01.avi": {"split_1": "train"},
        "v_Run_g02.avi": {"split_1": "test", "split_2": "train"},
        "v_Walk_g01.avi": {"split_1": "train", "split_2": "train"},
    }


@pytest.mark.parametrize(
    ("lists", "splits"),
    [
        ({"trainvallist01": "ab", "testlist01": "c"}, ("train", "train", "test")),
        ({"trainvallist01": "ab", "vallist01": "b", "testlist01": "c"}, ("train", "validation", "test")),
        ({"TrainList01": "a", "ValList01": "b", "TestList01": "c"}, ("train", "validation", "test")),
    ],
)
def test_lists_as_those_of_ucf101_may_set_videos_aside_to_validate_on(
    tmp_path: Path, lists: dict[str, str], splits: tuple[str, ...]
) -> None:
    make(tmp_path, "Run/a.avi", "Run/b.avi", "Run/c.avi")
    for name, videos in lists.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"Run/{video}.avi\n" for video in videos))
    found = listing(tmp_path)
    assert found.kind == "ucf101"
    assert tuple(split for _, split in labelled(found).values()) == splits
    assert not found.notes


def test_a_division_without_a_list_to_train_on_is_noted(tmp_path: Path) -> None:
    make(tmp_path, "Run/a.avi", "Run/b.avi")
    (tmp_path / "testlist01.txt").write_text("Run/a.avi\n")
    (note,) = listing(tmp_path).notes
    assert note.startswith("no list of division 1 names a training video")


def test_ucf101_lists_that_do_not_fit_the_videos_are_problems(ucf: Path) -> None:
    found = listing(ucf, split=2)
    assert labelled(found) == {
        "UCF-101/Run/v_Run_g01.avi": ("Run", ""),
        "UCF-101/Run/v_Run_g02.avi": ("Run", "train"),
    }
    assert problems(found) == {"UCF-101/Walk/v_Walk_g01.avi": "mislabelled", "Run/v_Run_g09.avi": "missing"}


def test_what_to_rename_is_said_where_lists_differ_in_case_alone(ucf: Path) -> None:
    (ucf / "UCF-101/Walk").rename(ucf / "UCF-101/WALK")
    errors = {entry.id: entry.error or "" for entry in listing(ucf).entries}
    assert any("rename the folder WALK to Walk" in error for error in errors.values())
    make(ucf, "Clip_a.mp4")
    write(ucf / "net.json", '{"database": {"clip_A": {}}}')
    (entry,) = listing(ucf, "net.json").entries
    assert "rename the file Clip_a to clip_A" in (entry.error or "")


def test_a_ucf101_division_that_is_not_there_is_refused(ucf: Path) -> None:
    with pytest.raises(ConfigError, match="divisions found: 1, 2"):
        listing(ucf, split=3)
    with pytest.raises(ConfigError, match="divisions found: none"):
        listing(ucf, "UCF-101", kind="ucf101")


def test_the_kind_can_be_said(ucf: Path) -> None:
    found = listing(ucf, "UCF-101", kind="folders")
    assert labelled(found)["Run/v_Run_g01.avi"] == ("Run", "train")


def test_the_groups_of_ucf101_are_read_from_its_names(tmp_path: Path) -> None:
    make(tmp_path, "Run/v_Run_g01_c01.avi", "Run/v_Run_g01_c02.avi", "Walk/v_Walk_g01_c01.avi", "Walk/other.avi")
    groups = {e.id: e.group for e in listing(tmp_path).entries}
    assert groups == {
        "Run/v_Run_g01_c01.avi": "Run_g01",
        "Run/v_Run_g01_c02.avi": "Run_g01",
        "Walk/v_Walk_g01_c01.avi": "Walk_g01",
        "Walk/other.avi": "",
    }


def test_a_csv_column_names_the_groups(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    text = "path,label,group,Person\n1.mp4,a,g1,ann\n2.mp4,a,g2,bob\n"
    assert [e.group for e in csv_of(tmp_path, text).entries] == ["g1", "g2"]
    stores = Stores([f"file://{tmp_path}"])
    found = read_source(f"file://{tmp_path}/index.csv", stores, group_column="person")
    assert [e.group for e in found.entries] == ["ann", "bob"]
    assert [e.meta for e in found.entries] == [{"group": "g1", "Person": "ann"}, {"group": "g2", "Person": "bob"}]
    with pytest.raises(
        ConfigError, match=r"--group-column: .* no column 'actor'; its columns: path, label, group, Pers"
    ):
        read_source(f"file://{tmp_path}/index.csv", stores, group_column="actor")
    with pytest.raises(ConfigError, match="--group-column: applies only to a CSV file"):
        read_source(f"file://{tmp_path}", stores, group_column="person")


@pytest.mark.parametrize(("camera", "tolerance_s", "option"), [("top", None, "--camera"), (None, 0.1, "--tolerance-s")])
@pytest.mark.parametrize("name", ["", "index.csv"])
def test_options_of_robots_are_refused_for_other_sources(
    tmp_path: Path, name: str, camera: str | None, tolerance_s: float | None, option: str
) -> None:
    make(tmp_path, "run/1.mp4")
    write(tmp_path / "index.csv", "path,label\nrun/1.mp4,run\n")
    with refused(option, "unsupported"):
        read_source(f"file://{tmp_path}/{name}", Stores(["file:///"]), camera=camera, tolerance_s=tolerance_s)


def test_names_that_no_message_can_carry_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4", "run/bad\nname.mp4")
    (tmp_path / "run" / os.fsdecode(b"latin\xe4.mp4")).write_bytes(b"x")
    (tmp_path / "run" / "gone.mp4").symlink_to(tmp_path / "nowhere.mp4")
    found = listing(tmp_path)
    assert labelled(found) == {"run/1.mp4": ("run", "train")}
    assert problems(found) == {
        "run/bad\\nname.mp4": "name",
        "run/latin\\xe4.mp4": "name",
        "run/gone.mp4": "missing",
    }


def test_links_in_circles_end(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4")
    (tmp_path / "run" / "self.mp4").symlink_to("self.mp4")
    (tmp_path / "run" / "a").symlink_to("b")
    (tmp_path / "run" / "b").symlink_to("a")
    (tmp_path / "run" / "up").symlink_to(tmp_path)
    found = listing(tmp_path)
    assert labelled(found) == {"run/1.mp4": ("run", "train")}
    assert problems(found) == {"run/self.mp4": "missing"}


def test_folders_without_a_video_are_noted(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4", "walk/notes.txt")
    (tmp_path / "jump").mkdir()
    (note,) = listing(tmp_path).notes
    assert "2 folders hold no video" in note
    assert note.endswith("jump, walk")


def test_unlabelled_videos_are_noted_with_the_remedy(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    (note,) = listing(tmp_path).notes
    assert "put videos in class folders" in note


@pytest.mark.parametrize(
    ("splits", "other"), [("eval 0 Train", "0, eval"), ("holdout test", "holdout"), ("dev TEST", "")]
)
def test_splits_that_nothing_takes_by_itself_are_noted(tmp_path: Path, splits: str, other: str) -> None:
    make(tmp_path, *(f"{split}.mp4" for split in splits.split()))
    rows = "".join(f"{split}.mp4,run,{split}\n" for split in splits.split())
    notes = csv_of(tmp_path, f"path,label,split\n{rows}").notes
    assert [f"splits called {other} are not used" in note for note in notes] == [True] * bool(other)


LISTS = {
    "list.csv": ("path,label\n1.mp4,{}\n2.mp4,\n", "run"),
    "labels.csv": ("path,labels\n1.mp4,{}\n2.mp4,\n", "run|jump"),
    "kinetics.csv": ("label,youtube_id,time_start,time_end\n{},1,0,10\n,2,0,10\n", "run"),
    "something.json": ('[{{"id": "1", "template": "{}"}}, {{"id": "2"}}]', "Running"),
    "net.json": ('{{"database": {{"1": {{"annotations": [{}]}}, "2": {{}}}}}}', '{"segment": [0, 1], "label": "run"}'),
}


@pytest.mark.parametrize("name", LISTS)
def test_of_lists_without_any_label_all_can_be_predicted_on(tmp_path: Path, name: str) -> None:
    """Beside others that have one, they would be a class without a name."""
    make(tmp_path, "1.mp4", "2.mp4")
    text, label = LISTS[name]
    write(tmp_path / name, text.format(""))
    found = listing(tmp_path, name)
    assert [(entry.class_name, entry.error) for entry in found.entries] == [("", None)] * 2
    assert "2 videos" in found.notes[-1]
    write(tmp_path / name, text.format(label))
    errors = {entry.uri.rpartition("/")[2]: entry.error for entry in listing(tmp_path, name).entries}
    assert errors["1.mp4"] is None
    assert (errors["2.mp4"] or "").startswith("unlabelled: other videos have a label")


def test_lists_of_mmaction2_are_read(tmp_path: Path) -> None:
    make(tmp_path, "v/a b.mp4", "v/2.mp4")
    (tmp_path / "train.txt").write_text("v/a b.mp4 3\n\nv/2.mp4 0\nv/gone.mp4 1\n")
    found = listing(tmp_path, "train.txt")
    assert labelled(found) == {"v/a b.mp4": ("3", "train"), "v/2.mp4": ("0", "train")}
    assert problems(found) == {"v/gone.mp4": "missing"}


def test_lists_of_kinetics_are_read(tmp_path: Path) -> None:
    make(tmp_path, "clips/abseiling/abc_000020_000030.mp4", "whole/xyz.mp4")
    text = (
        "label,youtube_id,time_start,time_end,split\nabseiling,abc,20,30,train\nsinging,xyz,5,15,val\n"
        "singing,gone,0,10,val\n,abc,20,30,test\n"
    )
    found = csv_of(tmp_path, text)
    assert labelled(found) == {
        "clips/abseiling/abc_000020_000030.mp4": ("abseiling", "train"),
        "whole/xyz.mp4#5-15s": ("singing", "validation"),
    }
    assert sorted(problems(found).values()) == ["doubled", "missing"]
    assert next(e.segment for e in found.entries if e.id.startswith("whole")) == Segment(5.0, 15.0, "s")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "mine.json",
            "[]",
            r"is not a known kind of list\. Known: csv: .*something: JSON lists of id and template",
        ),
        ("broken.json", "[", r"broken\.json is not JSON"),
        ("jester.csv", "34870;Drumming Fingers\n", "list of Jester or Something-Something v1"),
        ("list.csv", '[{"id": 1}]', "this is JSON, not CSV"),
        ("shard-000.tar", "x", "cannot be read as a tar archive"),
        ("shard-000.tar.gz", "x", "is compressed, so its videos cannot be read separately; decompress it"),
        ("annotations.pkl", "x", "pickles .* can run code"),
        ("frames.txt", "some/folder 120 7\n", "no folders of frames"),
        ("names.txt", "names of videos\n", r"'names of videos' is not `path label`"),
        ("brush_hair_test_split1.txt", "a.avi 3\n", "is not `video 0`, `video 1` or `video 2`"),
        ("clip.mp4", "x", "is one video"),
        (
            "testlist01.txt",
            "Archery/v_Archery_g01_c01.avi\n",
            r"one of the lists of UCF-101; .*--source ucf101 --split 1",
        ),
        ("classInd.txt", "1 Archery\n", "one of the lists of UCF-101"),
        ("videos.zip", "x", "archives are not read; unpack it"),
        ("clips.npz", "x", "arrays and records are not read, only video files"),
        ("clips.yaml", "x", r"clips\.yaml: lists of this format are not read; write a CSV file"),
        ("frames/a/img_0001.jpg", "x", "1 folder of pictures such as a. If each"),
    ],
)
def test_what_is_not_read_is_named_with_what_to_do(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        listing(tmp_path, name.partition("/")[0])


def test_a_source_that_is_not_there_is_told_from_one_without_videos(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere: there is no such folder, or it is empty; give a folder"):
        listing(tmp_path, "nowhere")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.md").touch()
    with pytest.raises(NotFound, match=r"it has no video files \(1 other file: \.md 1\)"):
        listing(tmp_path, "notes")


def test_what_lies_around_a_csv_file_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server cannot be, and millions of objects take long."""
    make(tmp_path, "1.mp4")

    def refuse(store: DirectoryStore, prefix: str = "") -> Iterator[ObjectInfo]:
        raise ConfigError("cannot be listed")

    monkeypatch.setattr(DirectoryStore, "list", refuse)
    assert labelled(csv_of(tmp_path, "path,label\n1.mp4,run\n")) == {"1.mp4": ("run", "train")}


def test_a_list_at_the_top_of_a_disk_names_files_beside_it() -> None:
    assert [listed_uri(name, "file://") for name in ("a/1.mp4", "../a/1.mp4")] == ["file:///a/1.mp4"] * 2


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
        ("1.mp4", None),
        ("1.mp4#0-1.5s", Segment(0.0, 1.5, "s")),
        ("1.mp4#1.5-s", Segment(1.5, None, "s")),
    ]
    frames = csv_of(tmp_path, "path,label,start_frame,end_frame\n1.mp4,a,5,5\n1.mp4,b,,20\n")
    assert [(e.id, e.segment) for e in frames.entries] == [
        ("1.mp4#0-20", Segment(0, 20, "frame")),
        ("1.mp4#5-5", Segment(5, 5, "frame")),
    ]


@pytest.mark.parametrize("bounds", ["2,1", "1,1", "-1,2", "nan,2", "0,inf", "one,2"])
def test_csv_segments_that_hold_no_frame_are_problems(tmp_path: Path, bounds: str) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, f"path,label,start_s,end_s\n1.mp4,a,{bounds}\n")
    assert list(problems(found).values()) == ["segment"]


def test_csv_rows_that_make_no_sense_are_problems_with_their_line(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    text = "path,label\n1.mp4,a\nmissing.mp4,a\n,a\n1.mp4,\n1.mp4,a\n/etc/passwd,a\n"
    found = csv_of(tmp_path, text)
    assert labelled(found) == {"1.mp4": ("a", "train")}
    assert problems(found) == {
        "missing.mp4": "missing",
        "line 4": "unnamed",
        "1.mp4@2": "doubled",
        "1.mp4@3": "doubled",
        "file:///etc/passwd": "missing",
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

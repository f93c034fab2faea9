"""Data sets as their authors publish them: each is recognised, and labels, splits, groups and segments are theirs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from essp.catalog.entry import Entry, Segment
from essp.catalog.json_lists import split_named
from essp.catalog.layout import Kind
from essp.catalog.layouts import LAYOUTS
from essp.catalog.sources import Listing, read_source
from essp_common.catalog.targets import unpack
from essp_common.errors import ConfigError
from essp_common.wiring import Stores
from tests.harness.listings import csv_of, labelled, listing, make, problems, shard, write


def by_id(found: Listing) -> dict[str, Entry]:
    return {entry.id: entry for entry in found.entries}


def test_every_layout_has_a_test_of_its_own() -> None:
    named = {"kinetics", "mmaction2", "something", "activitynet", "webdataset", "hmdb51", "hollywood2", "ccv", "kth"}
    assert (
        set(LAYOUTS)
        == named | {"lerobot", "mcap", "ucf101", "videofolder", "parquet", "two-level", "folders"}
        == set(get_args(Kind)) - {"auto", "csv"}
    )


def test_kth_is_cut_and_divided_as_its_authors_do(tmp_path: Path) -> None:
    make(tmp_path, "boxing/person01_boxing_d1_uncomp.avi", "walking/person11_walking_d2_uncomp.avi")
    make(tmp_path, "walking/person22_walking_d4_uncomp.avi")
    write(
        tmp_path / "00sequences.txt", "person01_boxing_d1\t\tframes\t1-95, 96-185\nperson11_walking_d2  frames  1-10\n"
    )
    found = listing(tmp_path)
    assert found.kind == "kth"
    assert found.recognised.startswith("kth: 3 videos named personNN_ACTION_dN, cut as 00sequences.txt says")
    assert labelled(found) == {
        "boxing/person01_boxing_d1_uncomp.avi#0-94": ("boxing", "validation"),
        "boxing/person01_boxing_d1_uncomp.avi#95-184": ("boxing", "validation"),
        "walking/person11_walking_d2_uncomp.avi#0-9": ("walking", "train"),
        "walking/person22_walking_d4_uncomp.avi": ("walking", "test"),
    }
    first = by_id(found)["boxing/person01_boxing_d1_uncomp.avi#95-184"]
    assert (first.segment, first.group, first.meta) == (Segment(95, 184, "frame"), "person01", {"scenario": "d1"})


def test_hmdb51_lists_give_the_split_and_names_the_film(tmp_path: Path) -> None:
    names = [f"April_09_brush_hair_u_nm_np1_ba_goo_{number}.avi" for number in range(3)]
    make(tmp_path, *(f"videos/brush_hair/{name}" for name in names), "videos/wave/other.avi", "videos/wave/new.avi")
    for division, marks, gap in ((1, "120", " "), (2, "211", "\t")):
        text = "".join(f"{name}{gap}{mark} \n" for name, mark in zip(names, marks, strict=True))
        write(tmp_path / f"splits/brush_hair_test_split{division}.txt", text)
        write(tmp_path / f"splits/wave_test_split{division}.txt", "other.avi 1 \ngone.avi 2 \n")
    found = listing(tmp_path)
    assert found.kind == "hmdb51"
    assert labelled(found) == {
        f"videos/brush_hair/{names[0]}": ("brush_hair", "train"),
        f"videos/brush_hair/{names[1]}": ("brush_hair", "test"),
        f"videos/brush_hair/{names[2]}": ("brush_hair", ""),
        "videos/wave/other.avi": ("wave", "train"),
    }
    assert problems(found) == {"wave/gone.avi": "missing", "videos/wave/new.avi": "unlisted"}
    assert {entry.group for entry in found.entries if "brush" in entry.id} == {"April_09"}
    second = listing(tmp_path, split=2)
    assert labelled(second)[f"videos/brush_hair/{names[0]}"] == ("brush_hair", "test")
    for entries in (found.entries, second.entries):
        columns = {entry.id: entry.meta for entry in entries if "brush" in entry.id}
        assert columns == {
            f"videos/brush_hair/{names[0]}": {"split_1": "train", "split_2": "test"},
            f"videos/brush_hair/{names[1]}": {"split_1": "test", "split_2": "train"},
            f"videos/brush_hair/{names[2]}": {"split_1": "", "split_2": "train"},
        }
    with pytest.raises(ConfigError, match="divisions found: 1, 2"):
        listing(tmp_path, split=3)


def test_hollywood2_clips_have_several_labels(tmp_path: Path) -> None:
    make(tmp_path, *(f"AVIClips/actioncliptrain0000{number}.avi" for number in (1, 2, 3)))
    make(tmp_path, "AVIClips/actioncliptest00001.avi", "AVIClips/actioncliptrain00009.avi")
    write(tmp_path / "ClipSets/actions_train.txt", "actioncliptrain00001\n")
    write(
        tmp_path / "ClipSets/Run_train.txt", "actioncliptrain00001  1\nactioncliptrain00002  1\nactioncliptrain00003 -1"
    )
    write(
        tmp_path / "ClipSets/Eat_train.txt", "actioncliptrain00001  1\nactioncliptrain00002 -1\nactioncliptrain00003 -1"
    )
    write(tmp_path / "ClipSets/Eat_test.txt", "actioncliptest00001  1\nactioncliptest00002  1\n")
    found = listing(tmp_path)
    assert found.kind == "hollywood2"
    assert {e.id: (e.labels, e.split) for e in found.entries if e.error is None} == {
        "AVIClips/actioncliptrain00001.avi": (("Eat", "Run"), "train"),
        "AVIClips/actioncliptrain00002.avi": (("Run",), "train"),
        "AVIClips/actioncliptest00001.avi": (("Eat",), "test"),
    }
    assert problems(found) == {
        "AVIClips/actioncliptrain00003.avi": "unlabelled",
        "AVIClips/actioncliptrain00009.avi": "unlisted",
        "actioncliptest00002": "missing",
    }


def test_ccv_columns_are_labels(tmp_path: Path) -> None:
    make(tmp_path, "a1.mp4", "videos/b2.mp4")
    rows = {"a1": (0, 9), "b2": (19,), "c3": (), "d4": (1,)}
    lines = {name: " ".join("1" if place in ones else "0" for place in range(20)) for name, ones in rows.items()}
    make(tmp_path, "c3.mp4")
    write(tmp_path / "trainVidID.txt", "a1\nc3\n")
    write(tmp_path / "trainLabel.txt", f"{lines['a1']}\n{lines['c3']}\n")
    write(tmp_path / "testVidID.txt", "b2\nd4\n")
    write(tmp_path / "testLabel.txt", f"{lines['b2']}\n{lines['d4']}\n")
    found = listing(tmp_path)
    assert found.kind == "ccv"
    assert {e.id: (e.labels, e.split) for e in found.entries if e.error is None} == {
        "a1.mp4": (("Basketball", "Bird"), "train"),
        "videos/b2.mp4": (("Playground",), "test"),
    }
    assert problems(found) == {"c3.mp4": "unlabelled", "d4": "missing"}
    write(tmp_path / "testLabel.txt", "1 0\n1 0\n")
    with pytest.raises(ConfigError, match=r"testLabel\.txt, line 1: 2 columns instead of 20"):
        listing(tmp_path)


def test_classes_in_groups_are_read_where_it_is_said(tmp_path: Path) -> None:
    make(tmp_path, "sport/ball/1.mp4", "sport/ball/2.mp4", "sport/swim/3.mp4", "party/ball/4.mp4", "party/5.mp4")
    found = listing(tmp_path, kind="two-level")
    assert labelled(found) == {
        "sport/ball/1.mp4": ("sport/ball", "train"),
        "sport/ball/2.mp4": ("sport/ball", "train"),
        "sport/swim/3.mp4": ("swim", "train"),
        "party/ball/4.mp4": ("party/ball", "train"),
    }
    assert problems(found) == {"party/5.mp4": "unlabelled"}
    assert by_id(found)["sport/swim/3.mp4"].meta == {"class_group": "sport"}
    (tmp_path / "party/5.mp4").unlink()
    plain = listing(tmp_path)
    assert plain.kind == "folders"
    assert "use --source two-level" in plain.notes[0]


def test_classes_in_groups_below_split_folders(tmp_path: Path) -> None:
    make(tmp_path, "train/sport/swim/1.mp4", "val/sport/swim/2.mp4")
    assert labelled(listing(tmp_path, kind="two-level")) == {
        "train/sport/swim/1.mp4": ("swim", "train"),
        "val/sport/swim/2.mp4": ("swim", "validation"),
    }


def test_something_something_is_labelled_by_its_templates(tmp_path: Path) -> None:
    make(tmp_path, "20bn/7.webm", "20bn/8.webm", "20bn/9.webm")
    row = {"id": "7", "label": "holding a pen", "template": "Holding [something]", "placeholders": ["a pen"]}
    write(tmp_path / "labels/something-something-v2-train.json", json.dumps([row, {"id": "6", "template": "x"}]))
    write(tmp_path / "labels/something-something-v2-validation.json", json.dumps([{**row, "id": 8}]))
    write(tmp_path / "labels/something-something-v2-test.json", json.dumps([{"id": "9"}]))
    write(tmp_path / "labels/something-something-v2-labels.json", json.dumps({"Holding something": "0"}))
    found = listing(tmp_path)
    assert found.kind == "something"
    assert labelled(found) == {
        "20bn/7.webm": ("Holding something", "train"),
        "20bn/8.webm": ("Holding something", "validation"),
    }
    assert problems(found) == {"6": "missing", "20bn/9.webm": "unlabelled"}
    assert by_id(found)["20bn/7.webm"].meta == {"sentence": "holding a pen", "placeholders": ["a pen"]}


ACTIVITIES = {
    "version": "1.3",
    "database": {
        "abc": {
            "duration": 30.5,
            "subset": "training",
            "annotations": [
                {"segment": [0.5, 10], "label": "Jump"},
                {"segment": [8, 20], "label": "Run", "score": 1},
                {"segment": [8, 20], "label": "Sing"},
            ],
        },
        "xyz": {"subset": "validation", "annotations": [{"segment": [5, 5], "label": "Jump"}]},
        "tst": {"subset": "testing", "annotations": []},
        "gone": {"subset": "training", "annotations": [{"segment": [5, 6], "label": "Jump"}]},
    },
}


def test_activitynet_segments_are_rows_with_what_overlaps_them(tmp_path: Path) -> None:
    make(tmp_path, "videos/v_abc.mp4", "videos/xyz.mkv", "videos/v_tst.mp4")
    write(tmp_path / "activity_net.json", json.dumps(ACTIVITIES))
    found = listing(tmp_path, "activity_net.json")
    assert found.kind == listing(tmp_path).kind == "activitynet"
    assert labelled(found) == {
        "videos/v_abc.mp4#0.5-10s": ("Jump", "train"),
        "videos/v_abc.mp4#8-20s": ("Run", "train"),
        "videos/v_abc.mp4#8-20s:Sing": ("Sing", "train"),
    }
    assert problems(found) == {
        "videos/xyz.mkv#annotation 1": "segment",
        "videos/v_tst.mp4": "unlabelled",
        "gone": "missing",
    }
    run = by_id(found)["videos/v_abc.mp4#8-20s"]
    assert [name for _, name in run.spans] == ["Jump", "Run", "Sing"]
    assert run.meta == {"duration": 30.5, "score": 1}


def test_seconds_of_a_segment_may_be_written_as_text(tmp_path: Path) -> None:
    make(tmp_path, "abc.mp4")
    segments = [["0.5", "10"], "12", ["a", "b"], ["nan", "3"]]
    annotations = [{"segment": segment, "label": "Jump"} for segment in segments]
    write(tmp_path / "list.json", json.dumps({"database": {"abc": {"subset": "val", "annotations": annotations}}}))
    found = listing(tmp_path, "list.json")
    assert labelled(found) == {"abc.mp4#0.5-10s": ("Jump", "validation")}
    assert set(problems(found)) == {f"abc.mp4#annotation {number}" for number in (2, 3, 4)}


def test_segments_of_a_file_may_be_one_row(tmp_path: Path) -> None:
    make(tmp_path, "videos/v_abc.mp4")
    write(tmp_path / "list.json", json.dumps(ACTIVITIES))
    found = read_source(f"file://{tmp_path}/list.json", Stores([f"file://{tmp_path}"]), whole=True)
    (entry,) = (entry for entry in found.entries if entry.error is None)
    assert (entry.id, entry.segment, entry.labels) == ("videos/v_abc.mp4", None, ("Jump", "Run", "Sing"))
    assert entry.spans == (
        (Segment(0.5, 10.0, "s"), "Jump"),
        (Segment(8.0, 20.0, "s"), "Run"),
        (Segment(8.0, 20.0, "s"), "Sing"),
    )


def test_one_row_has_all_labels_of_its_segments_and_the_name_of_its_file(tmp_path: Path) -> None:
    make(tmp_path, "take#1.mp4", "take#2.mp4", "two.mp4")
    lines = ["path,labels,start_s,end_s,group"]
    lines += ["take#1.mp4,run|shout,0,1,g1", "take#1.mp4,jump,1,2,g1", "take#2.mp4,run,0,1,g1"]
    lines += ["two.mp4,run,0,1,g1", "two.mp4,jump,1,2,g2"]
    write(tmp_path / "list.csv", "\n".join(lines))
    found = read_source(f"file://{tmp_path}/list.csv", Stores([f"file://{tmp_path}"]), whole=True)
    assert set(labelled(found)) == {"take#1.mp4", "take#2.mp4"}
    assert by_id(found)["take#1.mp4"].labels == ("jump", "run", "shout")
    assert [name for _, name in by_id(found)["take#1.mp4"].spans] == ["run", "shout", "jump"]
    assert problems(found) == {"two.mp4": "group"}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("ucf_train_val_list.txt", "train"),
        ("trainval.txt", "train"),
        ("train-validation.txt", "train"),
        ("train_256_val.txt", "train"),
        ("k400_val_list.txt", "validation"),
        ("val_of_train.txt", "train"),
        ("train_split_test.txt", "test"),
        ("train_val_test_list.txt", "test"),
        ("my_testlist.txt", "test"),
        ("testset1.txt", "test"),
        ("valList.txt", "validation"),
        ("trainingSet.csv", "train"),
        ("validation_dataset.txt", "validation"),
        ("trainvalset.txt", "train"),
        ("list.txt", ""),
        ("dataset.txt", ""),
        ("testosterone.txt", ""),
    ],
)
def test_the_split_that_the_name_of_a_list_tells(name: str, split: str) -> None:
    assert split_named(name) == split


def test_webdataset_videos_are_read_where_they_lie(tmp_path: Path) -> None:
    first = {"a__json": b'{"label": "run", "fps": 30}', "a__mp4": b"first video", "b__mp4": b"2", "b__cls": b"7"}
    shard(tmp_path / "kinetics-val-000.tar", **first)
    shard(tmp_path / "train/001.tar", c__mp4=b"third", c__txt=b"a man runs", d__txt=b"no video")
    shard(tmp_path / "train/002.tar", e__mp4=b"one", e__avi=b"other")
    found = listing(tmp_path)
    assert found.kind == "webdataset"
    assert labelled(found) == {
        "kinetics-val-000.tar/a.mp4": ("run", "validation"),
        "kinetics-val-000.tar/b.mp4": ("7", "validation"),
        "train/001.tar/c.mp4": ("", "train"),
        "train/002.tar/e.mp4": ("", "train"),
        "train/002.tar/e.avi": ("", "train"),
    }
    entries = by_id(found)
    assert [entries[name].meta for name in sorted(entries)] == [{"fps": 30}, {}, {"caption": "a man runs"}, {}, {}]
    entry = entries["kinetics-val-000.tar/a.mp4"]
    store, key = Stores([f"file://{tmp_path}"]).resolve(entry.uri, video=True)
    assert store.get(key) == b"first video"
    assert (store.head(key).size_bytes, store.head(key).etag) == (entry.size_bytes, entry.etag)
    with store.open(key) as file:
        file.seek(-5, io.SEEK_END)
        assert (file.read(), file.tell()) == (b"video", 11)


def test_lists_of_mmaction2_may_name_several_labels_and_the_classes(tmp_path: Path) -> None:
    make(tmp_path, "videos_val/1.mp4", "videos_val/2.mp4")
    write(tmp_path / "k400_val_list_videos.txt", "1.mp4 0 1\n2.mp4 1\n")
    write(tmp_path / "label_map_k400.txt", "run\nwalk\n")
    found = listing(tmp_path, "k400_val_list_videos.txt")
    assert found.recognised.endswith("class names from label_map_k400.txt; split: validation")
    assert {e.id: (e.class_name, e.labels, e.split) for e in found.entries} == {
        "videos_val/1.mp4": ("run", ("run", "walk"), "validation"),
        "videos_val/2.mp4": ("walk", (), "validation"),
    }


def test_clips_of_one_video_of_kinetics_are_a_group(tmp_path: Path) -> None:
    make(tmp_path, "train/abc_000020_000030.mp4", "train/abc_000050_000060.mp4")
    text = "label,youtube_id,time_start,time_end,split,is_cc\nrun,abc,20,30,train,1\nwalk,abc,50,60,train,0\n"
    write(tmp_path / "k700_train.csv", text)
    found = listing(tmp_path)
    assert found.kind == "kinetics"
    assert {entry.group for entry in found.entries} == {"abc"}
    assert by_id(found)["train/abc_000050_000060.mp4"].meta == {
        "youtube_id": "abc", "time_start": "50", "time_end": "60", "is_cc": "0",
    }  # fmt: skip


def test_csv_columns_of_ones_own_are_handed_through(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    found = csv_of(tmp_path, "path,label,Camera,take\n1.mp4,run, left ,3\n")
    (entry,) = found.entries
    assert entry.meta == {"Camera": "left", "take": "3"}


def test_csv_targets_of_videos_and_frames(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    write(tmp_path / "1.txt", "walk\nwalk\n\nrun\nwalk\n")
    np.save(tmp_path / "gaze.npy", np.arange(10, dtype=np.float32).reshape(5, 2))
    found = csv_of(tmp_path, "path,labels,frame_labels,values:gaze\n1.mp4,a|b,1.txt,gaze.npy\n2.mp4,c,gone.txt,\n")
    entry = by_id(found)["1.mp4"]
    assert (entry.class_name, entry.labels) == ("a", ("a", "b"))
    assert entry.spans == (
        (Segment(0, 1, "frame"), "walk"),
        (Segment(3, 3, "frame"), "run"),
        (Segment(4, 4, "frame"), "walk"),
    )
    assert unpack(entry.series).series["gaze"].tolist() == np.arange(10).reshape(5, 2).tolist()
    assert problems(found) == {"2.mp4": "targets"}


def test_what_a_source_is_can_be_said_and_is_then_no_guess(tmp_path: Path) -> None:
    make(tmp_path, "run/1.mp4")
    assert listing(tmp_path).kind == "folders"
    assert problems(listing(tmp_path, kind="kth")) == {"run/1.mp4": "unlabelled"}
    refused: tuple[tuple[Kind, str], ...] = (("something", "no JSON list"), ("hmdb51", "divisions found: none"))
    for kind, words in refused:
        with pytest.raises(ConfigError, match=words):
            listing(tmp_path, kind=kind)

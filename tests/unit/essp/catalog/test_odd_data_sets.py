"""Lists of data sets that say what cannot be, or contradict each other: each such row or list is named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from essp.catalog.lerobot_folder import LeRobotFolder
from essp_common.errors import ConfigError
from essp_common.wiring import open_store
from tests.harness.listings import csv_of, errors, labelled, listing, make, one_error, problems, shard, write

NO_NAME: list[Any] = [None, True, 0.5, math.nan, [], ["a"], {}, "", " "]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85"])
def test_only_the_usual_line_ends_separate_the_tasks_of_robots(tmp_path: Path, odd: str) -> None:
    info = {"codebase_version": "v2.1", "fps": 10, "features": {"action": {}}, "data_path": "a"}
    write(tmp_path / "meta" / "info.json", json.dumps(info))
    tasks = [{"task_index": number, "task": text} for number, text in enumerate((f"lift{odd}it", "push"))]
    lines = (json.dumps(task, ensure_ascii=False) for task in tasks)  # as LeRobot writes them
    write(tmp_path / "meta" / "tasks.jsonl", "\r\n".join(lines))
    assert LeRobotFolder(open_store(f"file://{tmp_path}")).tasks() == {0: f"lift{odd}it", 1: "push"}


@pytest.mark.parametrize("means", [([1, 2], [1]), ([[1], [2, 3]],)])
def test_statistics_of_robots_that_do_not_fit_are_named(tmp_path: Path, means: tuple[Any, ...]) -> None:
    info = {"codebase_version": "v2.1", "fps": 10, "features": {"action": {}}, "data_path": "a"}
    write(tmp_path / "meta" / "info.json", json.dumps(info))
    lines = ({"stats": {"action": {"min": mean, "mean": mean, "std": mean, "count": [1]}}} for mean in means)
    write(tmp_path / "meta" / "episodes_stats.jsonl", "\n".join(map(json.dumps, lines)))
    with pytest.raises(ConfigError, match=r"episodes_stats\.jsonl cannot be read"):
        LeRobotFolder(open_store(f"file://{tmp_path}")).stats()


@pytest.mark.parametrize("value", NO_NAME)
def test_what_is_no_class_in_json_makes_none(tmp_path: Path, value: object) -> None:
    make(tmp_path, "7.webm", "v_abc.mp4")
    write(tmp_path / "s.json", json.dumps([{"id": "7", "template": value}]))
    (entry,) = listing(tmp_path, "s.json").entries
    can_be_predicted_on = value is None or isinstance(value, str)
    assert entry.error == (None if can_be_predicted_on else "unlabelled: s.json has no template for it")
    annotations = [{"segment": [0, 1], "label": value}]
    write(tmp_path / "a.json", json.dumps({"database": {"abc": {"annotations": annotations}}}))
    assert one_error(listing(tmp_path, "a.json")) == (
        "segment: annotation 1 in a.json: `segment` is not a pair of numbers, or `label` is not a name"
    )
    shard(tmp_path / "t.tar", a__mp4=b"1", a__json=json.dumps({"label": value}).encode(), b__mp4=b"2", b__cls=b"x")
    assert errors(listing(tmp_path, "t.tar")) == (
        {} if value == ["a"] else {"t.tar/a.mp4": "unlabelled: other videos have a label, but this one does not"}
    )
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
    odd = "`segment` is not a pair of numbers, or `label` is not a name"
    assert errors(found) == {
        "v_abc.mp4#annotation 2": "segment: annotation 2 in a.json: 5 to 1 contains no frame",
        "v_abc.mp4#annotation 3": f"segment: annotation 3 in a.json: {odd}",
        "v_abc.mp4#annotation 4": f"segment: annotation 4 in a.json: {odd}",
    }


def test_a_video_that_is_there_twice_in_one_object_is_not_lost(tmp_path: Path) -> None:
    make(tmp_path, "v_abc.mp4")
    video = '"abc": {"annotations": [{"segment": [0, 1], "label": "a"}]}'
    write(tmp_path / "a.json", f'{{"database": {{{video}, {video}}}}}')
    with pytest.raises(ConfigError, match=r"a\.json is not JSON: 'abc' is there twice in one object"):
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
    assert one_error(found) == f"missing: list.txt names it, but there is no such file below {tmp_path}/"


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
        ("testlist01.txt", "Run/a.avi\n", "split: testlist01.txt and trainlist01.txt both name it"),
        (
            "trainlist01.txt",
            "Run/a.avi 3\n",
            "mislabelled: trainlist01.txt gives it label 3 (not in classInd.txt), but it is in Run",
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
        ConfigError, match=r"classInd\.txt: .* is (not `number class`|another name for an earlier number)"
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


def test_sequences_of_kth_without_a_video_are_problems(tmp_path: Path) -> None:
    make(tmp_path, "boxing/person01_boxing_d1_uncomp.avi")
    write(tmp_path / "00sequences.txt", "person01_boxing_d1\tframes\t1-9\nperson02_boxing_d1\tframes\t1-9\n")
    assert problems(listing(tmp_path)) == {"person02_boxing_d1": "missing"}


def test_a_few_other_videos_leave_a_folder_of_kth_one(tmp_path: Path) -> None:
    make(tmp_path, "intro.mp4", "boxing/person01_boxing_d1_uncomp.avi", "boxing/person11_boxing_d1_uncomp.avi")
    found = listing(tmp_path)
    assert found.kind == "kth"
    assert {split for _, split in labelled(found).values()} == {"validation", "train"}
    assert errors(found) == {"intro.mp4": "unlabelled: its name does not have the form personNN_ACTION_dN"}
    make(tmp_path, "more/1.mp4", "more/2.mp4")
    assert listing(tmp_path).kind == "folders"


def test_lists_of_ccv_without_labels_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    for name, text in (("trainVidID", "1"), ("trainLabel", " ".join("1" * 20)), ("testVidID", "2")):
        write(tmp_path / f"{name}.txt", text)
    with pytest.raises(ConfigError, match=r"testVidID\.txt exists without testlabel\.txt"):
        listing(tmp_path)

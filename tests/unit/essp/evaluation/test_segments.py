"""Mean average precision of segments against the definition, written out with plain loops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.evaluation.segment_lists import SegmentList, named_alike
from essp.evaluation.segments import Stretch, average_precision, evaluate
from essp_common.artifacts.segments import Segment, write_segments
from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from tests.harness.command_line import essp
from tests.harness.refused import Refusal, refused


def overlap(a: Stretch, b: Stretch) -> float:
    common = min(a.end, b.end) - max(a.begin, b.begin)
    return max(0.0, common) / (max(a.end, b.end) - min(a.begin, b.begin)) if common > 0 else 0.0


def by_definition(found: Sequence[Stretch], labelled: Sequence[Stretch], threshold: float) -> float:
    """The mean over classes of the area below interpolated precision, point by point of recall."""
    areas = []
    for name in {one.class_name for one in labelled}:
        truth = [one for one in labelled if one.class_name == name]
        taken: set[int] = set()
        points, hits = [], 0
        ranked = sorted((one for one in found if one.class_name == name), key=lambda one: -one.score)
        for number, one in enumerate(ranked, 1):
            fits = [
                (overlap(one, other), -place)
                for place, other in enumerate(truth)
                if other.video == one.video and place not in taken and overlap(one, other) >= threshold
            ]
            if fits:
                taken.add(-max(fits)[1])
                hits += 1
            points.append((hits / len(truth), hits / number))
        area = 0.0
        for step in range(1, len(truth) + 1):  # at each recall the best precision from there on
            recall = step / len(truth)
            area += max((p for r, p in points if r >= recall - 1e-12), default=0.0) / len(truth)
        areas.append(area)
    return sum(areas) / len(areas)


stretches = st.builds(
    lambda video, name, begin, length, score: Stretch(video, name, begin, begin + length, score),
    st.sampled_from("uv"), st.sampled_from("ab"), st.integers(0, 12), st.integers(1, 8),
    st.sampled_from([0.1, 0.5, 0.9]),
)  # fmt: skip


@given(st.lists(stretches, max_size=12), st.lists(stretches, min_size=1, max_size=8))
def test_it_is_the_definition(found: list[Stretch], labelled: list[Stretch]) -> None:
    overlaps = (0.1, 0.3, 0.5, 1.0)
    result = evaluate(found, labelled, overlaps)
    assert result.mean == pytest.approx([by_definition(found, labelled, threshold) for threshold in overlaps])
    assert result.average == pytest.approx(result.mean.mean())


def test_an_example_by_hand() -> None:
    labelled = [Stretch("v", "a", 0, 10), Stretch("v", "a", 20, 30)]
    found = [
        Stretch("v", "a", 1, 10, 0.9),  # 0.9
        Stretch("v", "a", 0, 9, 0.8),  # the same once more: wrong
        Stretch("v", "a", 20, 26, 0.7),  # 0.6
        Stretch("v", "b", 0, 10, 0.9),  # nobody has labelled b
        Stretch("w", "a", 0, 10, 0.1),  # nor anything in w
    ]
    result = evaluate(found, labelled, (0.5, 0.75))
    [only] = result.classes
    assert (only.labelled, only.found) == (2, 4)
    assert only.precision == pytest.approx([(1 + 2 / 3) / 2, 1 / 2])


def test_precision_counts_as_high_as_at_any_higher_recall() -> None:
    assert average_precision(np.array([False, True, True]), 2) == pytest.approx(2 / 3)
    assert average_precision(np.zeros(0, np.bool_), 3) == 0.0


# --- the command ---


FOUND = {
    "model": "m",
    "videos": [
        {"video": "clips/7.mp4", "segments": [{"class": "jump", "start_s": 1.0, "end_s": 3.0, "score": 0.9}]},
        {"video": "clips/8.mp4", "segments": []},
        {"video": "clips/9.mp4", "segments": [{"class": "run", "start_s": 0.0, "end_s": 1.0, "score": 0.4}]},
    ],
}
LABELS = "path,label,start_s,end_s,split\n7.mp4,jump,1.0,3.5,val\n8.mp4,run,0,2,test\nx/6.mp4,jump,0,1,val\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found.json").write_text(json.dumps(FOUND))
    (tmp_path / "labels.csv").write_text(LABELS)
    return tmp_path


def test_answers_of_predict_against_a_list(folder: Path) -> None:
    document = json.loads(essp("evaluate", "segments", "found.json", "--truth", "labels.csv", "--json").stdout)
    assert [each["class"] for each in document["classes"]] == ["jump", "run"]
    jump, run = document["classes"]
    assert jump["precision"]["0.8"] == 0.5  # one of two
    assert jump["precision"]["0.85"] == 0.0
    assert run["average"] == 0.0
    assert "1 video of 3 in which was searched have no labels, such as clips/9.mp4" in document["notes"][0]
    assert "1 labelled video of 3" in document["notes"][1]


def test_names_that_are_the_same_need_no_likeness() -> None:
    """Though they are like others, too: in another folder, or with a dot in them."""
    same = listed("labels", "a.mp4", "day2/a.mp4", "clip.1", "clip.2")
    assert named_alike(same, same) == same


def listed(where: str, *videos: str) -> SegmentList:
    return SegmentList(where, "s", tuple(Stretch(name, "run", 0.0, 1.0) for name in videos), frozenset(videos))


def test_names_are_told_apart_by_all_but_the_suffix_of_a_video_file() -> None:
    """A dot belongs to many a name, of takes or of segments of a file."""
    found = named_alike(
        listed("found", "x/clip.1", "x/clip.2.MP4", "b.mp4#0-9"), listed("labels", "clip.1.mp4", "clip.2")
    )
    assert found.videos == {"clip.1.mp4", "clip.2", "b.mp4#0-9"}


@pytest.mark.parametrize("pair", [("x/7.mp4", "y/7.mp4"), ("7.avi", "7.mp4"), ("7", "x/7.mp4"), ("7.mp4", "v_7.mp4")])
def test_two_videos_are_not_taken_for_one(pair: Refusal) -> None:
    """What was found in both would count for that one, even where one of them is called so."""
    first, second = pair
    with pytest.raises(ConfigError, match=f"{first} and {second} of found may both be 7 of labels; name their folders"):
        named_alike(listed("found", *pair), listed("labels", "7"))


def test_a_table_and_a_subset(folder: Path) -> None:
    options = ["--iou", "0.1:0.9", "--subset", "val"]
    shown = essp("evaluate", "segments", "found.json", "--truth", "labels.csv", *options).stdout
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}
    assert rows["jump"] == rows["all"] == ["2", "1", "50.0", "50.0", "50.0", "50.0", "0.0", "44.4"]
    assert rows["class"] == ["labelled", "found", "0.1", "0.3", "0.5", "0.7", "0.9", "mean"]
    assert "run" not in rows


def test_activitynets_own_forms(folder: Path) -> None:
    truth = {"database": {"7": {"subset": "validation", "annotations": [{"segment": [1, 3], "label": "jump"}]}}}
    results = {"results": {"v_7": [{"label": "jump", "score": 0.3, "segment": [1, 3]}]}}
    (folder / "truth.json").write_text(json.dumps(truth))
    (folder / "results.json").write_text(json.dumps(results))
    shown = essp("evaluate", "segments", "results.json", "--truth", "truth.json", "--json").stdout
    assert json.loads(shown)["average"] == 1.0


def test_the_output_of_a_predict_job_is_in_frames(folder: Path) -> None:
    write_segments(DirectoryStore(str(folder / "out")), "segments.parquet", [[Segment("7", "jump", 10, 19, 0.5)]])
    (folder / "frames.csv").write_text("video,class,start_frame,end_frame\n7.mp4,jump,10,19\n")
    shown = essp("evaluate", "segments", "out", "--truth", "frames.csv", "--json").stdout
    assert json.loads(shown)["average"] == 1.0
    with pytest.raises(ConfigError, match=r"is in frames and .* in seconds"):
        essp("evaluate", "segments", "out", "--truth", "labels.csv")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("labels.csv", "path,start_s,end_s\na,1,2\n", "needs the columns"),
        ("labels.csv", "path,label,start_s,end_s\na,b,one,2\n", "line 2: start_s and end_s must be numbers"),
        ("labels.csv", "path,label,start_s,end_s\na,b,2,2\n", "b in a goes from 2 to 2"),
        ("labels.csv", "path,label,start_s,end_s\na,b,0,5,2\n", "line 2 has 5 fields, and there are 4 columns"),
        ("labels.csv", 'path,label,start_s,end_s\na,"b,1,2\nc,b,1,2\n', "is not a CSV file: line 3"),
        ("labels.csv", "", "it has no rows"),
        ("labels.csv", "path,label,start_s,end_s\nx/7.mp4,b,1,2\ny/7.avi,b,1,2\n", "may be x/7.mp4 or y/7.avi"),
        ("found.json", "{", "is not JSON"),
        pytest.param("found.json", "[" * 100_000, "is not JSON", id="deep"),
        ("found.json", '{"results": {"7": [], "7": []}}', "'7' is there twice in one object"),
        ("found.json", "{}", "has no segments"),
        ("found.json", '{"results": {"7": [{"label": "", "segment": [0, 1]}]}}', "from 0 to 1 has no class"),
        ("found.json", '{"results": {"": [{"label": "a", "segment": [0, 1]}]}}', "from 0 to 1 has no video"),
        ("found.json", '{"results": {"7": [{"label": "a", "segment": [0, 1' + "0" * 400 + "]}]}}", "cannot be read"),
        ("labels.csv", "path,label,start_s,end_s\na,,1,2\n", "the segment from 1 to 2 has no class"),
        ("found.json", '{"videos": [{"video": "7", "segments": [{"class": "a"}]}]}', "a segment cannot be read"),
        ("found.json", '{"results": {"7": [{"label": "a", "score": NaN, "segment": [0, 1]}]}}', "has the score nan"),
    ],
)
def test_what_cannot_be_compared_is_named(folder: Path, name: str, text: str, said: str) -> None:
    (folder / "found.json").write_text('{"videos": [{"video": "7.mp4", "segments": []}]}')
    (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        essp("evaluate", "segments", "found.json", "--truth", "labels.csv")


@pytest.mark.parametrize("iou", ["none", "0", "1.2", "0.5:0.9:0", "0.9:0.5", ""])
def test_thresholds_are_between_0_and_1(folder: Path, iou: str) -> None:
    with refused("--iou", "type"):
        essp("evaluate", "segments", "found.json", "--truth", "labels.csv", "--iou", iou)


def test_what_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.csv is not there"):
        essp("evaluate", "segments", "found.json", "--truth", "gone.csv")
    with pytest.raises(ConfigError, match="has no videos of 'train'; it has test, val"):
        essp("evaluate", "segments", "found.json", "--truth", "labels.csv", "--subset", "train")

"""Candidates in child processes: as in this one to the last bit, with nothing left, and what is said when one fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from essp_aggregator import search
from essp_aggregator.fusion import Aligned, Trial, align, in_turn, try_candidates
from essp_aggregator.search import Progress, Search, work
from essp_aggregator.search_child import answer, packed, unpacked
from essp_aggregator.shared_scores import SharedScores, scores_at
from essp_common.errors import PermanentError
from essp_common.job.spec import AggregationSpec
from essp_common.tensors.packed import pack
from essp_engine.aggregation.candidates import Candidate, candidates
from tests.lanes import often
from tests.unit.essp_engine.aggregation.scored_clips import any_clips

pytestmark = pytest.mark.lane("promises")

GRID: list[Any] = [
    "average",
    "best",
    {"name": "attention", "penalty": [0.01, 0.1]},
    {"name": "fisher_vector", "pca": 4, "centres": [2, 3]},
    {"name": "lstm", "hidden": [2, 3], "steps": 5, "weights": "fitted"},
]
# What a package has that makes trouble: its strategies are `average`, but for what they do on the way.
TROUBLE = '''
import os, signal

from essp_engine.aggregation.means import Average


class Dies(Average):
    """Dies."""

    def fit(self, parts):
        os.kill(os.getpid(), signal.SIGKILL)


class DiesOnce(Average):
    """Dies at its first try."""

    def fit(self, parts):
        try:
            os.close(os.open(os.environ["TROUBLE_MARK"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().fit(parts)
        os.kill(os.getpid(), signal.SIGKILL)


class Breaks(Average):
    """Has a defect."""

    def fit(self, parts):
        raise KeyError("x")


class Refuses(Average):
    """Cannot be fitted."""

    def fit(self, parts):
        raise ValueError("too few videos for this")


class Waits(Average):
    """Is at work for ever."""

    def fit(self, parts):
        print("at work", os.getpid(), flush=True)
        while True:
            pass
'''
NAMES = ("dies", "dies_once", "breaks", "refuses", "waits")


def several(*strategies: Any) -> tuple[Candidate, ...]:
    return candidates(AggregationSpec.model_validate({"strategies": list(strategies), "features": True}))


def some_scores(videos: int = 14) -> Aligned:
    return align({"rgb": any_clips(videos, 3, 1), "flow": any_clips(videos, 3, 2)})


def as_bytes(trials: Sequence[Trial]) -> list[tuple[bytes | None, bytes, str]]:
    """To the last bit."""
    return [
        (None if one.losses is None else one.losses.tobytes(), pack(one.state), repr((one.weights, one.validation)))
        for one in trials
    ]


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search counts as one that takes long."""
    monkeypatch.setattr(search, "_WORTH", 0)


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: None) -> None:
    """A package of strategies that fail is installed, here and in child processes."""
    information = tmp_path / "acme_trouble-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_trouble\nVersion: 1.0\n")
    entries = [f"{name} = acme_trouble:{name.title().replace('_', '')}" for name in NAMES]
    (information / "entry_points.txt").write_text("\n".join(["[essp.aggregators]", *entries]))
    (tmp_path / "acme_trouble.py").write_text(TROUBLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("TROUBLE_MARK", str(tmp_path / "mark"))


def test_scores_are_the_same_in_shared_memory() -> None:
    scores = some_scores()
    with SharedScores(scores) as shared:
        found = scores_at(shared.fd, shared.size)
    assert found.parts.keys() == scores.parts.keys()
    assert found.groups.tolist() == scores.groups.tolist()
    for name, part in scores.parts.items():
        own = found.parts[name]
        assert (own.means.video_id, own.means.classes) == (part.means.video_id, part.means.classes)
        for one, other in (
            (own.clips, part.clips),
            (own.features, part.features),
            (own.first, part.first),
            (own.means.class_id, part.means.class_id),
            (own.means.probabilities, part.means.probabilities),
        ):
            assert one is not None
            assert other is not None
            assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
        assert not own.clips.flags.writeable


def test_what_came_of_a_candidate_is_the_same_in_messages() -> None:
    trials = in_turn(several(*GRID), some_scores())
    assert as_bytes([unpacked(json.loads(said), data) for said, data in map(packed, trials)]) == as_bytes(trials)
    [alone] = in_turn(several("average"), some_scores(videos=1))
    said, data = packed(alone)
    assert unpacked(json.loads(said), data).losses is None


def test_a_child_answers_for_the_candidate_that_it_is_asked_for() -> None:
    scores = some_scores()
    said, data = answer({"name": "attention", "params": {"penalty": 0.1}}, scores)
    expected = in_turn(several({"name": "attention", "penalty": 0.1}), scores)
    assert as_bytes([unpacked(json.loads(said), data)]) == as_bytes(expected)


@pytest.mark.processes
@pytest.mark.parametrize("processes", often([3, 1], 1))
def test_processes_give_the_results_of_this_one_to_the_last_bit(long: None, processes: int) -> None:
    grid, scores = several(*GRID), some_scores()
    trials, expected = Search(processes, "j")(grid, scores), in_turn(grid, scores)
    assert as_bytes(trials) == as_bytes(expected)
    one, other = (try_candidates(grid, scores.parts, lambda *_, found=found: found) for found in (trials, expected))
    assert (one[0].evidence, one[1]) == (other[0].evidence, other[1])


def test_what_is_little_work_or_one_candidate_is_tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the fast lane sees to."""
    scores = some_scores()
    assert len(Search(4, "j")(several(*GRID), scores)) == 8
    monkeypatch.setattr(search, "_WORTH", 0)
    assert len(Search(4, "j")(several("average"), scores)) == 1


def test_work_is_what_a_candidate_reads() -> None:
    scores = some_scores()
    clips = sum(part.clips.size for part in scores.parts.values())
    features = sum(part.features.size for part in scores.parts.values() if part.features is not None)
    average, lstm = several("average", "lstm")
    assert work(average, scores) == clips
    assert work(lstm, scores) == clips + 20 * features


@pytest.mark.processes
def test_a_candidate_whose_process_was_killed_is_tried_again(trouble: None, caplog: pytest.LogCaptureFixture) -> None:
    grid, scores = several("dies_once", "best"), some_scores()
    found = as_bytes(Search(2, "j")(grid, scores))
    assert "tried dies_once was killed by signal 9 (SIGKILL); trying again" in caplog.text
    assert found == as_bytes(in_turn(several("average", "best"), scores))


@pytest.mark.processes
def test_a_candidate_whose_process_dies_twice_fails_the_search_by_name(trouble: None) -> None:
    with pytest.raises(
        PermanentError, match=r"strategy dies: the process .* killed by signal 9 \(SIGKILL\), also .* give the aggr"
    ):
        Search(2, "j")(several("average", "dies", "best"), some_scores())


@pytest.mark.processes
def test_what_a_candidate_raises_in_its_process_is_raised_here(trouble: None, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="too few videos for this"):
        Search(2, "j")(several("average", "refuses"), some_scores())
    with pytest.raises(PermanentError, match=r"strategy breaks failed: KeyError: 'x'; remove it from aggregation"):
        Search(2, "j")(several("average", "breaks"), some_scores())
    assert 'acme_trouble.py", line' in caplog.text, "where it was raised is in the log"


SEARCH = """
from essp_aggregator import search
from tests.unit.essp_aggregator.test_search import several, some_scores

search._WORTH = 0
search.Search(1, "j")(several("waits", "average"), some_scores())
"""


@pytest.mark.processes
def test_a_child_ends_with_the_process_that_searches_and_at_no_signal(trouble: None) -> None:
    """That one is killed, so it cannot say so, and the child is in the middle of a candidate."""
    with subprocess.Popen([sys.executable, "-c", SEARCH], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().removeprefix("at work "))
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child, number)
        parent.kill()
    _, status = os.waitpid(child, 0)  # this process adopts orphans, as `tests/harness/leaks.py` has it
    assert os.waitstatus_to_exitcode(status) == 0


def test_progress_says_how_long_the_rest_may_take(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = iter([0.0, 4.0, 30.0, 31.0, 80.0, 95.0])
    progress = Progress("j", [1, 1, 4, 2, 2], lambda: next(clock))
    for number in (0, 1, 3, 2, 4):
        progress.done(number)
    assert [record.getMessage() for record in caplog.records] == [
        "job j: tried 2 of 5 candidates in 30 s; about 120 s to go",
        "job j: tried 4 of 5 candidates in 80 s; about 20 s to go",
    ]

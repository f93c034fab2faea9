"""Experiments of papers: a run goes on where it stopped, a page says what the JSON files say, figures are right."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from benchmarks.papers.__main__ import PAPERS, ROOT
from benchmarks.papers.document import markdown, write_page
from benchmarks.papers.essp.folds import accuracy
from benchmarks.papers.essp.scaling import predicted
from benchmarks.papers.essp.traditional import Samples, Task, _write_flow
from benchmarks.papers.machine import _answer
from benchmarks.papers.study import Options, Part, Steps, Values, run, written

Made = list[str]


def part(made: Made, *, dies_at: str = "") -> Part:
    """Two steps, which note that they are made."""

    def make(name: str) -> int:
        if name == dies_at:
            raise KeyboardInterrupt
        made.append(name)
        return len(made)

    def steps(_: Options) -> Steps:
        for name in ("first", "second"):
            yield name, partial(make, name)

    def table(values: Values) -> str:
        return markdown(["step", "value"], [[name, str(value)] for name, value in values.items()])

    return Part("small", "a small part", steps, table)


def test_a_run_that_was_killed_goes_on_with_the_next_step(tmp_path: Path) -> None:
    made: Made = []
    path, options = tmp_path / "small.json", Options(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(part(made, dies_at="second"), options, path, resume=False)
    assert run(part(made), options, path, resume=True) == {"first": 1, "second": 2}
    assert made == ["first", "second"]
    assert all(len(step["load"]) == 2 for step in json.loads(path.read_text())["steps"].values())
    run(part(made), options, path, resume=False)
    assert made == ["first", "second", "first", "second"]


def test_a_run_is_not_mixed_with_one_that_was_asked_for_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    run(part([]), Options(tmp_path, rounds=1), path, resume=False)
    run(part([]), Options(tmp_path / "elsewhere", tmp_path, rounds=1), path, resume=True)  # neither is of its numbers
    with pytest.raises(ValueError, match="asked"):
        run(part([]), Options(tmp_path, rounds=2), path, resume=True)


def test_numbers_in_a_row_are_on_one_line_and_nothing_else_changes() -> None:
    held = {"a": [1, -2.5e-07, 3], "b": ["[1,  2]", "x"], "c": [{"d": []}], "e": [[1, 2], [3]]}
    text = written(held)
    assert json.loads(text) == held
    assert "[ 1, -2.5e-07, 3 ]" in text


def test_workers_of_a_measured_loader_start_as_those_of_a_program_of_ones_own() -> None:
    own = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)  # as in a process that was spawned
    try:
        receiver, sender = multiprocessing.Pipe(duplex=False)
        _answer(sender, multiprocessing.get_start_method, ())
        assert receiver.recv() == own
    finally:
        multiprocessing.set_start_method(own, force=True)


def test_a_page_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    run(part([]), Options(tmp_path), tmp_path / "paper" / "small.json", resume=False)
    page = tmp_path / "paper.md"
    page.write_text("before\n<!-- values of small -->\nold\n<!-- end of small -->\nafter\n")
    assert write_page(page, {"small": part([]), "other": part([])}, tmp_path / "paper") == ["other"]
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| second | 2 |" in lines
    assert "old" not in lines


def documents() -> Iterator[tuple[str, Path]]:
    for paper in PAPERS:
        for path in sorted((ROOT / "docs" / "papers" / paper).glob("*.json")):
            yield paper, path


@pytest.mark.parametrize(("paper", "path"), list(documents()), ids=lambda value: getattr(value, "stem", value))
def test_every_table_of_a_page_is_that_of_its_json_file(paper: str, path: Path, monkeypatch: Any) -> None:
    """Nobody has changed a number by hand, nor a file without the page."""
    part = PAPERS[paper][path.stem]
    told = json.loads(path.read_text())
    values = {name: step["value"] for name, step in told["steps"].items()}
    assert not told["asked"]["quick"], "numbers that mean nothing"
    assert part.table(values) in (ROOT / "docs" / "papers" / f"{paper}.md").read_text()


def test_accuracy_counts_videos_and_its_interval_folds() -> None:
    folds = [{"videos": 6, "top1": {"rgb-1": 0.5}}, {"videos": 12, "top1": {"rgb-1": 1.0}}]
    mean, width = accuracy(folds, "rgb-1")
    assert mean == pytest.approx(100 * 15 / 18)
    assert width > 0
    mean, width = accuracy([{"videos": 5, "top1": {"fused": 0.8}}] * 4, "fused")
    assert mean == pytest.approx(80)
    assert width == 0


def test_the_simulator_is_bound_by_ranks_decoders_or_cores() -> None:
    cost = {"data_s": 0.02, "train_s": 0.01}
    by_decoder, by_rank = predicted(cost, 1, 1, 8), predicted(cost, 1, 4, 8)
    assert by_decoder == pytest.approx(50, rel=0.1)
    assert by_rank == pytest.approx(100, rel=0.1)
    assert predicted(cost, 4, 4, 2) == pytest.approx(2 / 0.03, rel=0.1)


def test_extracted_flow_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Two fields of a picture that moves two pixels to the right; a mirrored clip moves to the left."""
    task = Task((tmp_path,), (3,), size=64, crop=64, length=2)
    picture = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 255, (64, 80), np.uint8), (0, 0), 2)
    own = tmp_path / "00000"
    own.mkdir()
    for number in range(3):
        cv2.imwrite(str(own / f"img_{number + 1:05d}.jpg"), picture[:, 10 - 2 * number : 74 - 2 * number])
    _write_flow(task, own)
    samples = Samples(task, tmp_path)
    right = 0
    for _ in range(8):
        frame, stack, label = samples[0]
        assert (frame.shape, stack.shape, label) == ((64, 64, 3), (64, 64, 4), 3)
        across, down = (float(np.median(stack[16:48, 16:48, axis])) for axis in (0, 1))
        assert abs(across - 127.5) == pytest.approx(2 * 255 / 40, abs=4)
        assert down == pytest.approx(127.5, abs=3)
        right += across > 127.5
    assert 0 < right <= 8

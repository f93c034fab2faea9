"""The plots of a report: curves, and the confusion matrix."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from essp.report import plots
from essp.report.facts import Run
from essp.report.page import render
from essp.report.plots import DARK, LIGHT
from essp.report.samples import choose, draw_samples, read_samples
from essp_common.artifacts.manifest import PhaseRecord, TakenChange
from tests.harness.finished_job import CLASSES
from tests.lanes import often
from tests.unit.essp.report.pages import STORES, Page, pixels

pytestmark = pytest.mark.slow

PURPOSES = ("train", "validation")


def test_a_confusion_matrix_is_dark_where_the_videos_are() -> None:
    diagonal = plots.confusion(np.diag([5, 5, 5, 5]), CLASSES, LIGHT)
    nothing = plots.confusion(np.zeros((4, 4), np.int64), CLASSES, LIGHT)
    strong = np.array([0x08, 0x51, 0x9C]) / 255
    shares = [(np.abs(pixels(png) - strong).max(axis=2) < 0.02).mean() for png in (diagonal, nothing)]
    assert shares[0] > shares[1] + 0.05


@pytest.mark.parametrize("name", often(["win_$5_to_$10", "$a^$", "cash $_$"], 1))
def test_names_of_classes_are_no_formulas(run: Run, name: str) -> None:
    assert pixels(plots.confusion(np.eye(4, dtype=np.int64), [name, *CLASSES[1:]], LIGHT)).size
    samples = [replace(each, label=name) for each in read_samples(run, STORES, choose(run)[:1])]
    assert pixels(draw_samples(samples, LIGHT)).size


def test_a_confusion_matrix_of_many_classes_fits() -> None:
    classes = [f"class {i}" for i in range(101)]
    assert pixels(plots.confusion(np.eye(101, dtype=np.int64), classes, DARK)).shape[0] < 1200


def test_curves_need_only_what_is_there(run: Run) -> None:
    trained_only = {name: [r for r in records if r.purpose == "train"] for name, records in run.histories.items()}
    picture = plots.accuracy(trained_only, {}, LIGHT)
    assert pixels(picture).size
    assert plots.accuracy({"rgb": []}, {}, LIGHT) != picture
    assert plots.loss({"rgb": []}, LIGHT) != plots.loss(trained_only, LIGHT)


@pytest.mark.parametrize("epochs", [1, 2, 3, 40])
def test_epochs_are_counted_in_whole_numbers(epochs: int) -> None:
    history = [PhaseRecord(purpose="train", epoch=k, metrics={"loss": 1.0}) for k in range(epochs)]
    _, axes = plots._over_epochs({"rgb": history}, ("loss",), LIGHT, {})
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks().tolist() if low <= tick <= high]
    assert ticks
    assert ticks == [round(tick) for tick in ticks]


@pytest.mark.parametrize("theme", often([LIGHT, DARK], 1))
def test_the_curves_of_a_large_sweep_are_as_high_and_told_apart(theme: plots.Theme) -> None:
    def drawn(trainers: int) -> np.ndarray:
        losses = {f"rgb-{i}": [1.0 + i, 0.5 + i] for i in range(trainers)}
        histories = {
            name: [PhaseRecord(purpose=p, epoch=e, metrics={"loss": v}) for p in PURPOSES for e, v in enumerate(values)]
            for name, values in losses.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return pixels(plots.loss(histories, theme))

    few, many = drawn(2), drawn(24)
    assert len(many) > len(few) + 22 * 20, "a row of the legend for each"
    for trainers in (1, 5, 6, 24):
        assert len(set(plots.line_colours(theme, trainers))) == trainers


def test_changes_of_the_running_job_are_marked_where_they_were_taken(run: Run) -> None:
    name = next(iter(run.histories))
    history = [PhaseRecord(purpose="train", epoch=epoch, metrics={"loss": 1.0, "clips": 8}) for epoch in range(2)]
    change = TakenChange(number=1, epoch=1, clip=2, fields={f"trainers.{name}.optimizer.lr": 0.5})
    assert plots.epochs_at(history, change) == 1.25
    assert plots.epochs_at(history, change.model_copy(update={"epoch": 9, "clip": 0})) == 9
    drawn = [plots.loss(run.histories, LIGHT, marked) for marked in ({}, {name: [change]})]
    assert drawn[0] != drawn[1]
    changed = dataclasses.replace(run, changes={name: (change,)})
    assert "changed while it ran" in Page(render(changed, {}, {})).text
    assert "changed while it ran" not in Page(render(run, {}, {})).text


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [1e-9, 0.0], [0.01, 2.0], [2.0, 2.0], [0.5], [0.1, 0.2, 9.0]])
def test_no_loss_is_below_zero(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "png", lambda figure, theme: figure)
    history = [PhaseRecord(purpose="train", epoch=e, metrics={"loss": value}) for e, value in enumerate(values)]
    figure: Any = plots.loss({"rgb": history}, LIGHT)
    low, high = figure.axes[0].get_ylim()
    assert 0 <= low <= min(values)
    assert high > low
    assert high >= plots.bounds(values)[1]


def test_an_outlier_does_not_squash_the_curve() -> None:
    falling = [4.6 * 0.8**epoch for epoch in range(40)]
    assert plots.bounds(falling) == (falling[-1], falling[0], 0)
    assert plots.bounds([*falling, 500.0, 900.0]) == (falling[-1], falling[0], 2)
    assert plots.bounds([2.0, 2.0]) == (2.0, 2.0, 0)
    assert plots.bounds([float("nan"), float("inf")]) == (0.0, 1.0, 0)

    def highest(values: list[float]) -> float:
        """How far up the curve is in the first quarter of the picture."""
        history = [PhaseRecord(purpose="train", epoch=k, metrics={"loss": v}) for k, v in enumerate(values)]
        blue = np.abs(pixels(plots.loss({"rgb": history}, LIGHT)) - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=2)
        rows = np.flatnonzero((blue < 0.1)[:, : blue.shape[1] // 4].any(axis=1))
        return 1 - int(rows[0]) / len(blue)

    assert highest([*falling, 500.0]) == pytest.approx(highest([*falling, falling[-1]]), abs=0.1)

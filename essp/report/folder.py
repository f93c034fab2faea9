"""`write_report` creates the report folder of a finished training job from its output store alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from essp.account import account_of
from essp.pages.elements import fact
from essp.report import plots
from essp.report.facts import Run, read_run
from essp.report.lettering import lettering
from essp.report.notes import PastRun, notes, past_runs
from essp.report.page import PAGE, RUNS, render
from essp.report.plots import DARK, LIGHT
from essp.report.samples import Sample, choose, code_shares, draw_samples, read_samples
from essp.report.sweeps import standings
from essp_common.artifacts import layout
from essp_common.artifacts.figures import confusion
from essp_common.artifacts.history import History
from essp_common.errors import NotFound
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

_KEPT = layout.REPORT + "run-{}.html"
"""The page as it was after this number of runs of the job."""


class Report(NamedTuple):
    """A written report."""

    page: str
    """The URI of `report.html`."""
    run: Run
    """What it shows."""


def write_report(output: ObjectStore, stores: Stores) -> Report:
    """Write `report.html` and its pictures.

    Raises `NotFound` if the job has no model yet.
    """
    run = read_run(output, stores)
    samples = read_samples(run, stores, choose(run))
    pictures = draw(run, samples)
    for name, (light, _) in pictures.items():
        output.put(f"{layout.REPORT}{name}.png", light)
    shares = {f"stream {name}, samples": words for name, words in code_shares(samples).items()}
    account = account_of(History(output).read())
    past = _with_reports(output, past_runs(account))
    numbered = lettering(run.model.classes).numbered if _named(run, pictures) else ()
    output.put(PAGE, render(run, pictures, notes(account) | shares, past, numbered).encode())
    return Report(output.uri(PAGE), run)


def _with_reports(output: ObjectStore, past: list[PastRun]) -> list[PastRun]:
    """These runs with their reports. The present page is kept under another name if it covers fewer runs."""
    with suppress(NotFound):
        page = output.get(PAGE)
        runs = fact(page.decode("utf-8", "replace"), RUNS)
        if runs.isdecimal() and 0 < int(runs) < len(past):
            output.put(_KEPT.format(int(runs)), page)
    there = {info.key for info in output.list(layout.REPORT)}
    return [
        replace(run, report=_KEPT.format(number).removeprefix(layout.REPORT)) if _KEPT.format(number) in there else run
        for number, run in enumerate(past, 1)
    ]


def _named(run: Run, pictures: Mapping[str, object]) -> bool:
    """Whether any picture shows names of classes."""
    return "samples" in pictures or ("confusion" in pictures and len(run.model.classes) <= plots.LEGIBLE_CLASSES)


def draw(run: Run, samples: list[Sample]) -> dict[str, tuple[bytes, bytes]]:
    """Draw each picture for a light and for a dark page. Empty pictures are left out."""
    found: dict[str, tuple[bytes, bytes]] = {}
    if run.histories:
        best = {member.trainer: member.epoch for member in run.model.members}
        found["loss"] = (
            plots.loss(run.histories, LIGHT, run.changes),
            plots.loss(run.histories, DARK, run.changes),
        )
        found["accuracy"] = (
            plots.accuracy(run.histories, best, LIGHT, run.changes, run.judged_by, run.unit),
            plots.accuracy(run.histories, best, DARK, run.changes, run.judged_by, run.unit),
        )
    if compared := {sweep: [(one.label, one.value) for one in members] for sweep, members in standings(run).items()}:
        found["sweeps"] = (plots.sweeps(compared, LIGHT), plots.sweeps(compared, DARK))
    if len(run.fused) and not run.model.independent:
        counts = confusion(run.fused.class_id, run.fused.probabilities)
        classes = lettering(run.model.classes).names
        found["confusion"] = (plots.confusion(counts, classes, LIGHT), plots.confusion(counts, classes, DARK))
    if samples:
        found["samples"] = (draw_samples(samples, LIGHT), draw_samples(samples, DARK))
    return found

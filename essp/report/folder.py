"""`write_report`: the report folder of a finished training job, made from its output store alone."""

from __future__ import annotations

from essp.account import account_of
from essp.report import plots
from essp.report.facts import Run, read_run
from essp.report.notes import notes
from essp.report.page import render
from essp.report.plots import DARK, LIGHT
from essp.report.samples import Sample, choose, code_shares, draw_samples, read_samples
from essp.report.sweeps import standings
from essp_common.artifacts import layout
from essp_common.artifacts.figures import confusion
from essp_common.artifacts.history import History
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

PAGE = layout.REPORT + "report.html"


def write_report(output: ObjectStore, stores: Stores) -> str:
    """Write `report.html` and its pictures. Returns the page's URI.

    Raises `NotFound` when the job has not made its model yet.
    """
    run = read_run(output, stores)
    samples = read_samples(run, stores, choose(run))
    pictures = draw(run, samples)
    for name, (light, _) in pictures.items():
        output.put(f"{layout.REPORT}{name}.png", light)
    shares = {f"stream {name}, samples": words for name, words in code_shares(samples).items()}
    words = notes(account_of(History(output).read())) | shares
    output.put(PAGE, render(run, pictures, words).encode())
    return output.uri(PAGE)


def draw(run: Run, samples: list[Sample]) -> dict[str, tuple[bytes, bytes]]:
    """Each picture for a light page and for a dark one; a picture of nothing is left out."""
    found: dict[str, tuple[bytes, bytes]] = {}
    if run.histories:
        best = {member.trainer: member.epoch for member in run.model.members}
        found["curves"] = (plots.curves(run.histories, best, LIGHT), plots.curves(run.histories, best, DARK))
    if compared := {
        sweep: [(one.label, one.validation["top1"]) for one in members] for sweep, members in standings(run).items()
    }:
        found["sweeps"] = (plots.sweeps(compared, LIGHT), plots.sweeps(compared, DARK))
    if len(run.fused):
        counts = confusion(run.fused.class_id, run.fused.probabilities)
        classes = run.model.classes
        found["confusion"] = (plots.confusion(counts, classes, LIGHT), plots.confusion(counts, classes, DARK))
    if samples:
        found["samples"] = (draw_samples(samples, LIGHT), draw_samples(samples, DARK))
    return found

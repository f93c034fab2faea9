"""compare.html: jobs next to each other on one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from essp.comparison.comparison import (
    Comparison,
    figure_words,
    interval_words,
    metric_names,
    pair_words,
)
from essp.pages.elements import Raw, document, section, table
from essp.report import plots
from essp.report.page import PAGE as REPORT
from essp.report.page import Pictures, pictures_section
from essp.report.plots import DARK, LIGHT
from essp.uris import shown
from essp_common.artifacts.figures import NAMES
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.quantities import duration, percent

_MOST_WITH_TRAINING = 4
"""With more curves, only those of the validation are drawn."""


def render(found: Comparison) -> str:
    """The page as HTML."""
    names = [job.label for job in found.jobs]
    parts = [
        f"<h1>{escape(' · '.join(names))}</h1>"
        f'<p class="quiet">Figures are by video, of the {escape(found.split)} split.</p>',
        _results(found),
        _notes(found),
        pictures_section("Curves", _caption(found), draw(found), ("loss", "accuracy")),
        _settings(found),
        _jobs(found),
    ]
    return document(f"{', '.join(names)} · ESSP comparison", filter(None, parts))


def draw(found: Comparison) -> Pictures:
    """The curves of all trainers over each other, for a light and for a dark page; empty if there are none."""
    histories = _drawn(found)
    if not any(histories.values()):
        return {}
    drawn = {
        "loss": tuple(plots.loss(histories, theme) for theme in (LIGHT, DARK)),
        "accuracy": tuple(plots.accuracy(histories, {}, theme, metric=found.judged_by) for theme in (LIGHT, DARK)),
    }
    return {name: (light, dark) for name, (light, dark) in drawn.items()}


def _drawn(found: Comparison) -> Mapping[str, Sequence[PhaseRecord]]:
    histories = found.histories
    if len(histories) <= _MOST_WITH_TRAINING:
        return histories
    return {
        name: [record for record in history if record.purpose == "validation"] for name, history in histories.items()
    }


def _caption(found: Comparison) -> str:
    with_training = len(found.histories) <= _MOST_WITH_TRAINING
    return "Training dashed, validation solid." if with_training else "Validation; with fewer jobs, training, too."


def _results(found: Comparison) -> str:
    if not found.results:
        return ""
    names = metric_names(found.results)
    head = ["job", "trainer", "model", "videos", "95 % interval<br>of top-1", *map(escape, names.values())]
    rows = [
        (
            [
                one.job,
                one.trainer,
                one.model,
                f"{one.videos:,}",
                interval_words(one),
                *(figure_words(name, one.figures) for name in names),
            ],
            one is found.best,
        )
        for one in found.results
    ]
    pairs = "".join(f"<p>{escape(pair_words(pair))}.</p>" for pair in found.pairs)
    why = (
        '<p class="quiet">By video: an exact McNemar test on the videos that only one of two jobs classified right. '
        "Choosing the best of many jobs by these figures makes the figure of the chosen one optimistic.</p>"
    )
    return section("Results", table(head, rows, left=(0, 1, 2)) + pairs + (why if found.pairs else ""))


def _notes(found: Comparison) -> str:
    if not found.notes:
        return ""
    return section("Notes", f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in found.notes)}</ul>")


def _settings(found: Comparison) -> str:
    if not found.settings:
        return section("Settings", "<p>The jobs have the same settings.</p>")
    rows = [([one.field, *(one.words(job.label) for job in found.jobs)], False) for one in found.settings]
    columns = range(len(found.jobs) + 1)
    head = ["setting", *(escape(job.label) for job in found.jobs)]
    return section("Settings that differ", table(head, rows, left=(*columns,), wrap=(*columns[1:],)))


def _jobs(found: Comparison) -> str:
    def place(uri: str) -> str:
        if not uri.startswith("file://"):
            return escape(uri)
        return f'<a href="{escape(uri)}/{escape(REPORT)}">{escape(shown(uri))}</a>'

    rows = [
        (
            [
                job.label,
                Raw(place(job.output) if job.run is not None else escape(shown(job.output))),
                "completed" if job.run is not None else "not completed",
                "" if job.seconds is None else duration(job.seconds),
                _last(job.histories, found.judged_by),
            ],
            False,
        )
        for job in found.jobs
    ]
    metric = NAMES[found.judged_by]
    head = ["job", "output", "state", "took", f"last validation, {metric}"]
    return section("Jobs", table(head, rows, left=(0, 1, 2), wrap=(1,)))


def _last(histories: Mapping[str, Sequence[PhaseRecord]], metric: str) -> str:
    """The newest validation metric of each trainer."""
    found = []
    for name, history in histories.items():
        values = [record.metrics for record in history if record.purpose == "validation"]
        value = values[-1].get(f"video_{metric}", values[-1].get(metric)) if values else None
        if value is not None:
            found.append(f"{name} {percent(value)}")
    return ", ".join(found)

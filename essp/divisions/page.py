"""divisions.html: the figures of all divisions of a data set on one page, with links to their reports."""

from __future__ import annotations

import json
from html import escape

from essp.divisions.figures import FUSED, Outcomes
from essp.pages.elements import Raw, document, section, table, tiles
from essp.report.page import PAGE as REPORT
from essp_common.artifacts.figures import NAMES, Figures, named
from essp_common.objects.port import ObjectStore
from essp_common.quantities import percent

PAGE = "divisions.html"
FIGURES_FILE = "divisions.json"


def write_page(output: ObjectStore, found: Outcomes) -> str:
    """Write the page and the figures into the job's output, next to the folders of the divisions. Returns the page's
    URI."""
    output.put(FIGURES_FILE, (json.dumps(found.document(), indent=2) + "\n").encode())
    output.put(PAGE, render(found).encode())
    return output.uri(PAGE)


def render(found: Outcomes) -> str:
    """The page as HTML."""
    mean, deviation = found.mean().get(FUSED, {}), found.deviation().get(FUSED, {})
    shown = [("divisions", str(len(found.each)))]
    if mean:
        shown = [(f"fused {NAMES[found.judged_by]}, {found.split}, mean", percent(mean[found.judged_by])), *shown]
    if deviation:
        shown.insert(1, ("standard deviation", percent(deviation[found.judged_by])))
    head = (
        f"<h1>{escape(found.job)}</h1>"
        f'<p class="quiet">One training for each division of the data set. Figures are by video, of the {found.split} '
        "videos of each division.</p>"
        f"{tiles(shown)}"
    )
    parts = [
        head,
        section(NAMES[found.judged_by], _table(found, found.columns, found.judged_by)),
        *map(lambda name: _all(found, name), found.columns),
    ]
    return document(f"{found.job} · ESSP divisions", parts)


def _table(found: Outcomes, columns: tuple[str, ...], figure: str) -> str:
    """A table with one figure of each column, and a row for each division."""
    rows = [
        (
            [
                Raw(_link(one.name, one.label)),
                f"{one.videos:,}",
                *(_shown(figure, one.figures[name]) for name in columns),
            ],
            False,
        )
        for one in found.each
    ]
    below = {"mean": found.mean(), "standard deviation": found.deviation(), "of all videos": found.of_all_videos()}
    rows += [
        ([label, "", *(_shown(figure, by_column[name]) for name in columns)], label == "mean")
        for label, by_column in below.items()
        if by_column
    ]
    return table(["division", "videos", *map(escape, columns)], rows, left=(0,))


def _all(found: Outcomes, column: str) -> str:
    """A table with all figures of one column."""
    names = named(one.figures[column] for one in found.each)
    rows = [
        ([Raw(_link(one.name, one.label)), *(_shown(name, one.figures[column]) for name in names)], False)
        for one in found.each
    ]
    below = {"mean": found.mean(), "standard deviation": found.deviation()}
    rows += [
        ([label, *(_shown(name, by_column[column]) for name in names)], label == "mean")
        for label, by_column in below.items()
        if by_column
    ]
    return section(column, table(["division", *names.values()], rows, left=(0,)))


def _link(name: str, label: str) -> str:
    return f'<a href="{escape(name)}/{escape(REPORT)}">{escape(label)}</a>'


def _shown(name: str, figures: Figures) -> str:
    if name not in figures:
        return ""
    return f"{figures[name]:.3f}" if name == "log_loss" else percent(figures[name])

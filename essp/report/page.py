"""report.html: everything about a run on one self-contained page, which needs no other files and no network.

Each picture is inlined twice, for a light and for a dark page. All text of the run is escaped, because names of classes
and videos come from file names.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

import numpy as np

from essp.pages.elements import Raw, document, section, table, tiles
from essp.report.facts import Run
from essp.report.notes import TIME, PastRun, in_utc
from essp.report.sweeps import standings
from essp_common.artifacts import layout
from essp_common.artifacts.figures import (
    NAMES,
    Figures,
    average_precisions,
    confusion,
    judged_by,
    named,
    relevance,
    share_interval,
)
from essp_common.artifacts.fused_model import Evaluation
from essp_common.job.timeline import UsageTotal
from essp_common.quantities import counted, duration, energy, percent, size

PAGE = layout.REPORT + "report.html"
_MISTAKES = 100
"""Maximum number of misclassified videos in the list. Their total number is always stated."""
_OPEN_ROWS = 30
"""Number of visible rows. Further rows of a table are folded."""
_PAIRS = 10
"""Maximum number of confused class pairs in the list."""

Pictures = Mapping[str, tuple[bytes, bytes]]
"""Name -> PNG for a light page, and for a dark one."""


_CHANGED = (
    "<p>Note: this is the job as it was started. It was changed while it ran; the changes, and from where on each "
    "counted, are under <em>The run</em>. A run without them gives other weights.</p>"
)
RUNS = "essp-runs"
"""The fact of a page that records how many runs of the job it covers."""


def render(
    run: Run,
    pictures: Pictures,
    notes: Mapping[str, str],
    past: Sequence[PastRun] = (),
    numbered: Sequence[int] = (),
) -> str:
    """The page as HTML. `notes`: further facts of the run, by label.

    `past`: all runs of the job, in order. `numbered`: the classes that pictures show by number.
    """
    sections = [
        _results(run),
        _sweeps(run),
        pictures_section(
            "Sweeps",
            f"{NAMES[run.judged_by]} on the validation split, by {run.unit}; the best of each sweep is filled.",
            pictures,
            ("sweeps",),
        ),
        _strategies(run),
        pictures_section(
            "Curves",
            "Training dashed, validation solid; the circle is the epoch that was chosen."
            + (" A dotted line: the job was changed there while it ran." if run.changes else ""),
            pictures,
            ("loss", "accuracy"),
        ),
        _confusion(run, pictures),
        _numbered(run, numbered),
        _classes(run),
        _samples(run, pictures),
        _mistakes(run),
        _notes(notes),
        _usage(run),
        _runs(past),
        _reproduction(run),
    ]
    parts = [_head(run, notes.get(TIME)), *(made for made in sections if made)]
    return document(f"{run.spec.name} · ESSP report", parts, facts={RUNS: str(len(past))})


def _head(run: Run, time: str | None) -> str:
    names = ", ".join(run.spec.trainers)
    evaluation = run.evaluation
    shown = [("labels" if run.model.independent else "classes", f"{len(run.model.classes):,}")]
    if evaluation is not None:
        first = judged_by(evaluation.fused)
        second = "mAP" if first == "top1" else "top1"
        best = max(evaluation.members, key=lambda name: evaluation.members[name][first])
        alone = (f"{best}, the best by itself", percent(evaluation.members[best][first]))
        shown = [
            (f"fused {NAMES[first]}, {run.split}{_doubt(first, evaluation)}", percent(evaluation.fused[first])),
            *([alone] if len(evaluation.members) > 1 else []),
            (f"fused {NAMES[second]}", percent(evaluation.fused[second])),
            (f"{run.split} {run.unit}s", f"{evaluation.videos:,}"),
            *shown,
        ]
    if time:
        taken, _, runs = time.partition(" in ")  # a tile has room for the one in large letters
        shown.append((f"taken by the job, in {runs}" if runs else "taken by the run", taken))
    return (
        f"<h1>{escape(run.spec.name)}</h1>"
        f'<p class="quiet">Trained: {escape(names)}. All figures are by {run.unit}; figures of a trainer are of its '
        "clips' mean.</p>"
        f"{tiles(shown)}"
    )


def _doubt(figure: str, evaluation: Evaluation) -> str:
    """The confidence interval of a share, given the number of videos; empty for a figure that is not a share."""
    if figure != "top1":
        return ""
    low, high = share_interval(evaluation.fused[figure], evaluation.videos)
    return f" (95 % interval: {100 * low:.1f} to {percent(high)})"


def _results(run: Run) -> str:
    splits = [name for name, found in (("validation", run.model.validation), ("test", run.model.test)) if found]
    rows = []
    evaluations = [found for found in (run.model.validation, run.model.test) if found]
    names = named(figures for found in evaluations for figures in (found.fused, *found.members.values()))
    for split in splits:
        for member in run.model.members:
            cells = [member.trainer, member.model.name, f"{member.weight:.3f}", str(member.epoch + 1), split]
            rows.append((cells + _figures(run.row(member.trainer), split, names), False))
        rows.append((["fused", "", "", "", split, *_figures(run.row(None), split, names)], True))
    left_out = "".join(
        f'<p class="quiet">{found.left_out} {split} {run.unit}s are left out: some trainer could not score them.</p>'
        for split, found in (("validation", run.model.validation), ("test", run.model.test))
        if found and found.left_out
    )
    stops = "".join(
        f'<p class="quiet">{escape(trainer)} {escape(stop.words)}.</p>' for trainer, stop in run.stops.items()
    )
    head = ["trainer", "model", "weight", "epoch", "split", *names.values()]
    return section("Results", table(head, rows, left=(1, 4)) + left_out + stops)


def _sweeps(run: Run) -> str:
    """A table for each sweep, best member first."""
    return "".join(
        section(
            f"Sweep {sweep}",
            f"<p>Best on validation: {escape(members[0].label)}.</p>"
            + table(
                ["", *map(escape, members[0].settings), *names.values()],
                [
                    (
                        [
                            one.trainer,
                            *one.settings.values(),
                            *(_figure(name, one.validation.get(name)) for name in names),
                        ],
                        one is members[0],
                    )
                    for one in members
                ],
            )
            + f'<p class="quiet">Figures of the validation split, by {run.unit}. The best of several runs is '
            "optimistic on validation; its test figure is not.</p>",
        )
        for sweep, members in standings(run).items()
        for names in [named(one.validation for one in members)]
    )


def _figures(row: tuple[Figures, Figures], split: str, names: Iterable[str]) -> list[str]:
    found = dict(zip(("validation", "test"), row, strict=True))[split]
    return [_figure(name, found.get(name)) for name in names]


def _figure(name: str, value: float | None) -> str:
    """The figure as text; empty if a model of an earlier version lacks it."""
    if value is None:
        return ""
    return f"{value:.3f}" if name == "log_loss" else percent(value)


def _strategies(run: Run) -> str:
    if not run.model.strategies:
        return section(
            "Fusion", "<p>There is no validation split to choose weights by: all streams count the same.</p>"
        )
    trainers = list(run.model.weights)
    head = [
        "strategy",
        *(f"weight of<br>{escape(name)}" for name in trainers),
        f"validation<br>{NAMES[run.judged_by]}",
        "log loss,<br>cross-validated",
        "&plusmn;",
    ]
    rows = [
        (
            [
                tried.label,
                *(f"{tried.weights[name]:.3f}" for name in trainers),
                _figure(run.judged_by, tried.validation.get(run.judged_by)),
                _optional(tried.held_out_log_loss),
                _optional(tried.uncertainty),
            ],
            tried.label == run.model.label,
        )
        for tried in run.model.strategies
    ]
    why = (
        f'<p class="quiet">Chosen by the log loss on validation {run.unit}s that the weights were not fitted to '
        "(&plusmn;: standard error of the difference from the chosen one), with scores as sure of themselves as is "
        "best for each strategy, so these losses are lower than those above. The test split had no say.</p>"
    )
    doubt = f"<p>Note: {escape(run.model.doubt)}.</p>" if run.model.doubt else ""
    return section("Fusion", table(head, rows) + why + doubt)


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _confusion(run: Run, pictures: Pictures) -> str:
    """The picture, and a list of the class pairs that are confused more than once, most frequent first."""
    if not len(run.fused) or run.model.independent:
        return ""
    names, wrong = run.model.classes, ~run.fused.right
    taken = Counter(zip(run.fused.class_id[wrong].tolist(), run.predicted[wrong].tolist(), strict=True))
    videos = Counter(run.fused.class_id.tolist())
    pairs = sorted((-count, videos[pair[0]], pair) for pair, count in taken.items() if count > 1)
    rows = [
        ([names[label], names[other], str(-count), percent(-count / of_label)], False)
        for count, of_label, (label, other) in pairs[:_PAIRS]
    ]
    head = ["label", "taken for", f"{run.unit}s", "of the<br>label's"]
    listed = f"<h3>Most often taken for another</h3>{table(head, rows, left=(1,), wrap=(0, 1))}" if rows else ""
    return pictures_section(
        f"Confusion on the {run.split} split", f"Fused model, by {run.unit}.", pictures, ("confusion",), listed
    )


def _numbered(run: Run, numbered: Sequence[int]) -> str:
    """The names of the numbered classes."""
    if not numbered:
        return ""
    rows = [([f"#{number}", run.model.classes[number]], False) for number in numbered]
    why = (
        "<p>Pictures have the numbers of these classes: the fonts of the machine that drew them lack the letters "
        "of their "
        "names, or the names are too long to distinguish.</p>"
    )
    return section("Classes by number", why + _long(["in pictures", "class"], rows, "class", left=(1,), wrap=(1,)))


def _samples(run: Run, pictures: Pictures) -> str:
    left_out = "".join(
        f'<p class="quiet">Stream {escape(stream)} is not drawn: {escape(feature)} describes a clip by numbers that '
        "do not form a picture.</p>"
        for stream, feature in run.descriptors.items()
    )
    caption = f"{run.unit.capitalize()}s of the {run.split} split, with what the streams see of them."
    return pictures_section("Samples", caption, pictures, ("samples",), left_out if "samples" in pictures else "")


def _classes(run: Run) -> str:
    """The quality of each trainer for each class, hardest class first. Labels are learned independently, and are shown
    with their average precision."""
    if not len(run.fused):
        return ""
    parts = [*run.scores.values(), run.fused]
    totals = relevance(run.fused.truth, len(run.model.classes)).sum(axis=0)
    if run.model.independent:
        word, figure = "label", "Average precision by label"
        found = [average_precisions(part.truth, part.probabilities) for part in parts]
    else:
        word, figure = "class", "Accuracy by class"
        right = [confusion(part.class_id, part.probabilities).diagonal() for part in parts]
        found = [counts / np.maximum(totals, 1) for counts in right]
    head = [word, f"{run.unit}s", *(escape(name) for name in run.scores), "fused", ""]
    rows = []
    for c in sorted(np.flatnonzero(totals), key=lambda c: (found[-1][c], run.model.classes[c])):
        shares = [each[c] for each in found]
        bar = f'<span><i style="width:{100 * shares[-1]:.1f}%"></i></span>'
        rows.append(([run.model.classes[c], f"{totals[c]:,}", *map(percent, shares), Raw(bar)], False))
    content = _long(head, rows, word, wrap=(0,), bar=len(head) - 1)
    return section(f"{figure} on the {run.split} split", f'<p class="quiet">The hardest first.</p>{content}')


def _long(
    head: Sequence[str],
    rows: Sequence[tuple[Sequence[str], bool]],
    thing: str,
    left: Sequence[int] = (),
    wrap: Sequence[int] = (),
    bar: int = -1,
) -> str:
    """A table whose first rows are visible. The others are folded."""
    first, rest = (table(head, part, left, wrap, bar) for part in (rows[:_OPEN_ROWS], rows[_OPEN_ROWS:]))
    more = len(rows) - _OPEN_ROWS
    return first + (f"<details><summary>{counted(more, thing)} more</summary>{rest}</details>" if more > 0 else "")


def _mistakes(run: Run) -> str:
    predicted, wrong = run.predicted, run.mistakes
    if not len(run.fused):
        return ""
    if not wrong:
        return section("Misclassified", f"<p>None of {len(run.fused):,} {run.split} {run.unit}s.</p>")
    rows = []
    for v in wrong[:_MISTAKES]:
        row, right = run.fused.probabilities[v], run.right(v)
        names = run.model.classes
        rows.append(
            (
                [
                    run.called(run.fused.video_id[v]),
                    run.answer(v),
                    names[predicted[v]],
                    percent(row[predicted[v]]),
                    percent(row[right].max()) if len(right) else "",
                ],
                False,
            )
        )
    of_label = "best score<br>of a label" if run.model.independent else "score of<br>the label"
    head = [run.unit, "label", "predicted", "its score", of_label]
    more = f", the {len(rows)} with the highest score are listed" if len(wrong) > len(rows) else ""
    sentence = f'<p class="quiet">{len(wrong):,} of {len(run.fused):,} {run.split} {run.unit}s{more}.</p>'
    return section("Misclassified", sentence + _long(head, rows, run.unit, left=(1, 2), wrap=(0, 1, 2)))


def _notes(notes: Mapping[str, str]) -> str:
    if not notes:
        return ""
    return section(
        "The run", table([], [([label, value], False) for label, value in notes.items()], left=(1,), wrap=(1,))
    )


_USED: tuple[tuple[str, Callable[[UsageTotal], str]], ...] = (
    ("observed for", lambda total: duration(total.seconds)),
    ("cores, mean", lambda total: "–" if total.cpu_cores is None else f"{total.cpu_cores:.1f}"),
    ("busy", lambda total: percent(total.busy, 0)),
    ("peak memory", lambda total: _optional_size(total.peak_memory_bytes)),
    ("GPU busy", lambda total: percent(total.gpu_busy, 0)),
    ("peak GPU memory", lambda total: _optional_size(total.peak_gpu_memory_bytes)),
    ("energy of GPUs", lambda total: "–" if total.gpu_joules is None else energy(total.gpu_joules)),
)


def _usage(run: Run) -> str:
    known = [total for total in run.usage if total.peak_memory_bytes is not None]
    if not known:
        return ""
    columns = [(head, [cell(total) for total in known]) for head, cell in _USED]
    columns = [(head, cells) for head, cells in columns if any(cell != "–" for cell in cells)]
    rows = [([total.pool, *(cells[k] for _, cells in columns)], False) for k, total in enumerate(known)]
    why = (
        '<p class="quiet">By the heartbeats of the workers, with their children. Workers that serve several jobs, such '
        "as decoders of a cluster, count with all that they did.</p>"
    )
    return section("What workers used", table(["pool", *(head for head, _ in columns)], rows, left=(0,)) + why)


def _optional_size(count: int | None) -> str:
    return "–" if count is None else size(count)


def _runs(past: Sequence[PastRun]) -> str:
    """The runs of the job; empty if there was only one."""
    if len(past) < 2:
        return ""
    rows = []
    for number, one in enumerate(past, 1):
        report = (
            "this one" if number == len(past) else one.report and Raw(f'<a href="{escape(one.report)}">as it was</a>')
        )
        rows.append(([str(number), in_utc(one.began), duration(one.seconds), f"{one.decoded:,}", report], False))
    return section("Runs of this job", table(["run", "began", "took", "clips decoded", "report"], rows, left=(1, 4)))


def _reproduction(run: Run) -> str:
    versions = table([], [([name, version], False) for name, version in sorted(run.model.versions.items())], left=(1,))
    members = table(
        ["trainer", "checkpoint", "SHA-256 of the weights"],
        [([m.trainer, m.checkpoint, m.sha256], False) for m in run.model.members],
        left=(1, 2),
        wrap=(1, 2),
    )
    return section(
        "To reproduce it",
        "<p>The job below gives the same seeds on any number of workers: <code>essp run spec.json</code>.</p>"
        + (_CHANGED if run.changes else "")
        + "".join(_approximate(name, steps) for name, steps in run.approximate.items())
        + f"<details><summary>The job, as it ran</summary><pre>{escape(run.spec_text)}</pre></details>"
        f"<details><summary>Versions</summary>{versions}</details>"
        f"<details><summary>Checkpoints</summary>{members}</details>",
    )


def _approximate(trainer: str, steps: Sequence[int]) -> str:
    at = ", ".join(f"{step:,}" for step in steps)
    return (
        f"<p>Note: trainer {escape(trainer)} is approximate: it resumed from rounded numbers at step {at}. A run that "
        "nothing interrupts gives other weights, near these.</p>"
    )


def pictures_section(title: str, caption: str, pictures: Pictures, names: Sequence[str], below: str = "") -> str:
    """The pictures that exist among these, next to each other if there is room."""
    found = [
        _picture(f"{title}: {name}" if len(names) > 1 else title, *pictures[name]) for name in names if name in pictures
    ]
    if not found:
        return section(title, below) if below else ""
    return section(title, f'<div class="beside">{"".join(found)}</div><p class="quiet">{escape(caption)}</p>{below}')


def _picture(words: str, *themes: bytes) -> str:
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in themes)
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img alt="{escape(words)}" src="{light}"></picture>'
    )

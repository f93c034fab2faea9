"""What differs between training jobs: their settings, their curves, their figures. Pure functions.

Figures are compared on one split. The first job is the baseline: every other job is compared with it on the videos that
both have scored, by an exact McNemar test (McNemar, 1947): of the videos that only one of the two classified right, how
likely is such a division by chance?
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from essp.comparison.runs import Compared
from essp_common.artifacts.figures import NAMES, Figures, judged_by, rank, share_interval
from essp_common.artifacts.fused_model import Evaluation
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.field_paths import joined, parts_of
from essp_common.job.changes import value_text
from essp_common.job.spec import JobSpec
from essp_common.quantities import percent

FUSED = "fused"
_NAMED = ("trainers", "streams")
"""Sections of names. A name that not all jobs have is one difference, however many fields it has."""
_OWN = ("name", "output")
"""Fields that always differ."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class Difference:
    """A setting in which jobs differ."""

    field: str
    """As in a job file, with dots."""
    values: Mapping[str, Any]
    """Job -> its value; without the jobs that do not have the field."""

    def words(self, label: str) -> str:
        """The value of a job, as in a job file; a dash if it does not have the field."""
        return value_text(self.values[label]) if label in self.values else "–"


@dataclass(frozen=True)
class Result:
    """The figures of one trainer of a job, or of the fused model."""

    job: str
    trainer: str
    """Or `fused`."""
    model: str
    """The name of its network; empty if fused."""
    videos: int
    figures: Figures
    interval: tuple[float, float] | None
    """The 95 % confidence interval of top-1 (Wilson); None for labels."""


@dataclass(frozen=True)
class Pair:
    """A job compared with the first one, video by video."""

    first: str
    other: str
    videos: int
    """Videos that both have scored."""
    only_first: int
    """Videos that only the first one classified right."""
    only_other: int
    p: float
    """The probability of a difference at least as large by chance."""


@dataclass(frozen=True)
class Comparison:
    """What differs between jobs."""

    jobs: tuple[Compared, ...]
    split: str
    """The split of the figures: `test`, or `validation` if some job has no test split."""
    settings: tuple[Difference, ...]
    results: tuple[Result, ...]
    best: Result | None
    """The best result of a job as a whole; None if the jobs were not measured on the same videos."""
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...]
    """What limits the comparison."""

    @property
    def judged_by(self) -> str:
        """The metric by which results and curves are compared."""
        return judged_by(self.results[0].figures) if self.results else "top1"

    @property
    def histories(self) -> dict[str, Sequence[PhaseRecord]]:
        """`JOB TRAINER` -> its curve."""
        return {f"{job.label} {name}": history for job in self.jobs for name, history in job.histories.items()}

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "jobs": [
                {
                    "name": job.spec.name,
                    "label": job.label,
                    "output": job.output,
                    "completed": job.run is not None,
                    "seconds": job.seconds,
                    "trainers": list(job.spec.trainers),
                }
                for job in self.jobs
            ],
            "split": self.split,
            "settings": [asdict(one) for one in self.settings],
            "results": [asdict(one) for one in self.results],
            "pairs": [asdict(one) for one in self.pairs],
            "curves": {
                job.label: {name: [one.model_dump() for one in history] for name, history in job.histories.items()}
                for job in self.jobs
            },
            "notes": list(self.notes),
        }


def compare(jobs: Sequence[Compared]) -> Comparison:
    """Compare these jobs; the first one is the baseline."""
    complete = [job for job in jobs if job.run is not None]
    split = "test" if all(job.run and job.run.model.test for job in complete) else "validation"
    results = [result for job in complete for result in _results(job, split)]
    scored = {job.label: job.run for job in complete if job.run is not None and job.run.split == split}
    notes = [*_unfinished(jobs), *_classes(complete), *_videos(complete, split), *_versions(complete), *_changed(jobs)]
    pairs = [found for job in complete[1:] if (found := _pair(complete[0], job, split)) is not None]
    whole = [result for result in results if _is_whole(result, results)]
    alike = len({scored[label].fused.video_id for label in scored}) == 1 and len(scored) == len(complete)
    alike = alike and len({frozenset(job.run.model.classes) for job in complete if job.run}) == 1
    best = min(whole, key=lambda one: rank(one.figures)) if alike and len(whole) > 1 else None
    return Comparison(tuple(jobs), split, tuple(differences(jobs)), tuple(results), best, tuple(pairs), tuple(notes))


def differences(jobs: Sequence[Compared]) -> list[Difference]:
    """The settings in which jobs differ, in the order of a job file."""
    found = _of_names(jobs)
    partly = {parts_of(one.field) for one in found}
    flat = {job.label: dict(_leaves(job.spec.model_dump(mode="json"))) for job in jobs}
    fields = list(dict.fromkeys(path for leaves in flat.values() for path in leaves))
    parents = {path[:length] for path in fields for length in range(1, len(path))}
    for path in fields:
        if path[0] in _OWN or path in parents or path[:2] in partly:
            continue
        values = {label: leaves[path] for label, leaves in flat.items() if path in leaves}
        texts = {json.dumps(value, sort_keys=True) for value in values.values()}
        if len(texts) > 1 or len(values) < len(jobs):
            found.append(Difference(joined(path), values))
    order = list(JobSpec.model_fields)
    return sorted(found, key=lambda one: order.index(one.field.partition(".")[0]))


def _of_names(jobs: Sequence[Compared]) -> list[Difference]:
    """Trainers and streams that only some jobs have, each in a few words."""
    found = []
    for section in _NAMED:
        names = dict.fromkeys(name for job in jobs for name in getattr(job.spec, section))
        for name in names:
            there = {job.label: getattr(job.spec, section)[name] for job in jobs if name in getattr(job.spec, section)}
            if len(there) < len(jobs):
                of = "{0.model} on {0.stream}" if section == "trainers" else "{0.feature}"
                found.append(Difference(f"{section}.{name}", {label: of.format(it) for label, it in there.items()}))
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        return [leaf for name, inner in value.items() for leaf in _leaves(inner, (*path, name))]
    return [(path, value)]


def _evaluation(job: Compared, split: str) -> Evaluation | None:
    assert job.run is not None
    return job.run.model.test if split == "test" else job.run.model.validation


def _results(job: Compared, split: str) -> list[Result]:
    """The figures of each trainer, and of the fused model if it has several members."""
    evaluation = _evaluation(job, split)
    if evaluation is None or job.run is None:
        return []
    models = {member.trainer: member.model.name for member in job.run.model.members}
    rows = [(name, models.get(name, ""), figures) for name, figures in evaluation.members.items()]
    if len(evaluation.members) > 1:
        rows.append((FUSED, "", evaluation.fused))
    return [
        Result(
            job.label,
            name,
            model,
            evaluation.videos,
            figures,
            share_interval(figures["top1"], evaluation.videos) if judged_by(figures) == "top1" else None,
        )
        for name, model, figures in rows
    ]


def _is_whole(result: Result, results: Sequence[Result]) -> bool:
    """Whether this is the result of a job as a whole."""
    return result.trainer == FUSED or sum(one.job == result.job for one in results) == 1


def _pair(first: Compared, other: Compared, split: str) -> Pair | None:
    """Two jobs video by video; None if that says nothing: other classes, no common video, or labels."""
    one, two = first.run, other.run
    if (
        one is None
        or two is None
        or {one.split, two.split} != {split}
        or one.model.independent
        or two.model.independent
    ):
        return None
    if set(one.model.classes) != set(two.model.classes):
        return None
    common = sorted(set(one.fused.video_id) & set(two.fused.video_id))
    if not common:
        return None
    mine, yours = one.fused.select(common), two.fused.select(common)
    same = np.array(
        [mine.classes[a] == yours.classes[b] for a, b in zip(mine.class_id, yours.class_id, strict=True)], np.bool_
    )
    only_first = int((mine.right & ~yours.right & same).sum())
    only_other = int((yours.right & ~mine.right & same).sum())
    return Pair(first.label, other.label, int(same.sum()), only_first, only_other, by_chance(only_first, only_other))


def by_chance(one: int, other: int) -> float:
    """The exact two-sided probability of such a division of `one + other` videos, if both were equally likely."""
    count = one + other
    tail, ways = 0, 1
    for k in range(min(one, other) + 1):
        tail += ways
        ways = ways * (count - k) // (k + 1)  # count over k + 1
    return min(1.0, 2 * tail / (1 << count))


def _unfinished(jobs: Sequence[Compared]) -> list[str]:
    return [f"{job.label} has not completed, so it has no results yet" for job in jobs if job.run is None]


def _classes(jobs: Sequence[Compared]) -> list[str]:
    """What the jobs' classes are, if they differ."""
    found = []
    first = jobs[0].run if jobs else None
    for job in jobs[1:]:
        if first is None or job.run is None or set(job.run.model.classes) == set(first.model.classes):
            continue
        sides = [
            f"only {label} has {_some(sorted(set(mine) - set(yours)))}"
            for label, mine, yours in (
                (jobs[0].label, first.model.classes, job.run.model.classes),
                (job.label, job.run.model.classes, first.model.classes),
            )
            if set(mine) - set(yours)
        ]
        found.append(f"the classes differ ({'; '.join(sides)}), so figures cannot be compared")
    return found


def _videos(jobs: Sequence[Compared], split: str) -> list[str]:
    """Whether the jobs were measured on the same videos."""
    found = []
    if any(job.run is not None and job.run.split != split for job in jobs):
        without = [job.label for job in jobs if job.run is not None and job.run.model.test is None]
        found.append(f"{_some(without)}: no test split, so the figures are those of the validation split")
    if any(_evaluation(job, split) is None for job in jobs):
        without = [job.label for job in jobs if _evaluation(job, split) is None]
        found.append(f"{_some(without)}: no {split} split, so there are no figures")
    seen = {job.label: set(job.run.fused.video_id) for job in jobs if job.run is not None and job.run.split == split}
    for label, videos in list(seen.items())[1:]:
        first, known = next(iter(seen.items()))
        if videos != known:
            found.append(
                f"the {split} videos differ: {first} has {len(known):,}, {label} has {len(videos):,}, and "
                f"{len(known & videos):,} are in both; only the comparison by video is of the same videos"
            )
    return found


def _versions(jobs: Sequence[Compared]) -> list[str]:
    versions = {job.label: job.run.model.versions.get("essp", "?") for job in jobs if job.run is not None}
    if len(set(versions.values())) < 2:
        return []
    return ["versions of ESSP differ: " + ", ".join(f"{label} {version}" for label, version in versions.items())]


def _changed(jobs: Sequence[Compared]) -> list[str]:
    return [
        f"{job.label} was changed while it ran ({_some(sorted({f for c in changes for f in c.fields}))}); the settings "
        "are those of its start"
        for job in jobs
        if job.run is not None and (changes := [one for of in job.run.changes.values() for one in of])
    ]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"


def pair_words(pair: Pair, unit: str = "video") -> str:
    """The comparison of two jobs in a sentence."""
    if pair.only_first == pair.only_other == 0:
        return f"Of {pair.videos:,} {unit}s, {pair.other} and {pair.first} are right on the same"
    chance = "could well be chance" if pair.p >= 0.05 else "is unlikely to be chance"
    return (
        f"Of {pair.videos:,} {unit}s, only {pair.other} is right on {pair.only_other:,}, only {pair.first} on "
        f"{pair.only_first:,}: such a difference {chance} (p = {pair.p:.2g})"
    )


def interval_words(result: Result) -> str:
    """The confidence interval of top-1, as in `84.1 to 97.2`; empty if there is none."""
    if result.interval is None:
        return ""
    low, high = result.interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def figure_words(name: str, figures: Figures) -> str:
    """A figure as text; empty if it is missing."""
    if name not in figures:
        return ""
    return f"{figures[name]:.3f}" if name == "log_loss" else percent(figures[name])


def metric_names(results: Sequence[Result]) -> dict[str, str]:
    """Metric -> display name, for the metrics that any result has."""
    return {name: words for name, words in NAMES.items() if any(name in one.figures for one in results)}

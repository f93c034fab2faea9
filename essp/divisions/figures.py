"""Collects the results of the jobs of all divisions: their figures, the mean, and the spread.

Papers report the mean over the divisions. It is shown with the sample standard deviation (divided by n - 1). If each
video is tested once (folds), the share of all videos that were classified correctly is also shown. Folds differ in
size, so it differs from the mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from essp.divisions.jobs import Division
from essp.report.page import PAGE
from essp.uris import shown
from essp_common.artifacts import layout
from essp_common.artifacts.figures import Figures, judged_by
from essp_common.artifacts.fused_model import FusedModel, read_model
from essp_common.artifacts.manifest import Manifest
from essp_common.errors import NotFound, PermanentError
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

FUSED = "fused"
_SHARES = ("top1", "top5")
"""Figures that are shares of the videos, from which the shares of all videos can be computed."""


@dataclass(frozen=True)
class Outcome:
    """The result of the job of one division."""

    name: str
    label: str
    output: str
    """URI."""
    videos: int
    figures: Mapping[str, Figures]
    """By trainer, and for the fused model (`FUSED`)."""


@dataclass(frozen=True)
class Outcomes:
    """The results of all divisions."""

    job: str
    split: str
    """The split that was measured: test, or validation if there is no test split."""
    each: tuple[Outcome, ...]
    once: bool
    """Whether each video was measured at most once."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Trainers, and `FUSED`, for which all divisions have figures."""
        return tuple(name for name in self.each[0].figures if all(name in one.figures for one in self.each))

    @property
    def judged_by(self) -> str:
        """The metric shown for each division."""
        return judged_by(next(iter(self.each[0].figures.values())))

    def values(self, column: str, figure: str) -> list[float]:
        """A figure of each division."""
        return [one.figures[column][figure] for one in self.each]

    def _of_all(self, column: str) -> list[str]:
        """The figures of a column that every division has. Results of an earlier version may have other figures."""
        return [name for name in self.each[0].figures[column] if all(name in one.figures[column] for one in self.each)]

    def mean(self) -> dict[str, Figures]:
        """Means by column."""
        return {
            column: {figure: statistics.fmean(self.values(column, figure)) for figure in self._of_all(column)}
            for column in self.columns
        }

    def deviation(self) -> dict[str, Figures]:
        """Sample standard deviations by column; empty for a single division."""
        if len(self.each) < 2:
            return {}
        return {
            column: {figure: statistics.stdev(self.values(column, figure)) for figure in self._of_all(column)}
            for column in self.columns
        }

    def of_all_videos(self) -> dict[str, Figures]:
        """Shares of the videos of all divisions, by column.

        Empty if some videos were measured several times, or if the job learns labels, whose mAP is not a share.
        """
        if not self.once or self.judged_by not in _SHARES:
            return {}
        videos = [one.videos for one in self.each]
        return {
            column: {
                figure: statistics.fmean(self.values(column, figure), videos)
                for figure in _SHARES
                if figure in self._of_all(column)
            }
            for column in self.columns
        }

    def document(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        return {
            "job": self.job,
            "split": self.split,
            "divisions": [asdict(one) for one in self.each],
            "mean": self.mean(),
            "standard_deviation": self.deviation(),
            "of_all_videos": self.of_all_videos(),
        }


def has_ended(division: Division, manifests: Mapping[str, Manifest], stores: Stores) -> bool:
    """Whether nothing is left to do: all trainers have ended, the model fuses their final checkpoints, and the report
    exists.

    `manifests`: the newest checkpoint of each trainer.
    """
    output = stores.under(division.spec.output)
    finals = {name: found for name, found in manifests.items() if found.final}
    model = _model(output)
    if model is None or finals.keys() < division.spec.trainers.keys():
        return False
    taken = {member.trainer: member.checkpoint for member in model.members}
    return all(taken.get(name, output.uri(found.key)) == output.uri(found.key) for name, found in finals.items()) and (
        _is_there(output, PAGE)
    )


def outcomes(job: str, divisions: Sequence[Division], stores: Stores, once: bool) -> Outcomes:
    """The figures of divisions whose jobs have ended. Raises `NotFound` if a job has no model, or no figures of the
    split on which the others are measured."""
    models = [read_model(stores.under(each.spec.output), layout.MODEL_MANIFEST) for each in divisions]
    split = "test" if all(model.test is not None for model in models) else "validation"
    each = tuple(_outcome(one, model, split) for one, model in zip(divisions, models, strict=True))
    return Outcomes(job, split, each, once and split == "test")


def _outcome(division: Division, model: FusedModel, split: str) -> Outcome:
    found = model.test if split == "test" else model.validation
    output = division.spec.output
    if found is None:
        raise NotFound(
            f"{shown(output)} has no figures of the {split} split, so there is no mean over all divisions; its report "
            "says which videos could not be read"
        )
    return Outcome(division.name, division.label, output, found.videos, {**found.members, FUSED: found.fused})


def _model(output: ObjectStore) -> FusedModel | None:
    try:
        return read_model(output, layout.MODEL_MANIFEST)
    except (NotFound, PermanentError):
        return None


def _is_there(output: ObjectStore, key: str) -> bool:
    try:
        output.head(key)
    except NotFound:
        return False
    return True

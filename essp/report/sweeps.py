"""Compares the members of a job's sweeps by the validation split, best first.

The test split is not used, because the chosen member is measured on it. A job without validation split has no order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from essp.report.facts import Run
from essp_common.artifacts.figures import NAMES, Figures, judged_by, rank
from essp_common.job.sweeps import label_of, words
from essp_common.quantities import percent


@dataclass(frozen=True, slots=True)
class Standing:
    """One member of a sweep, with its result."""

    trainer: str
    settings: Mapping[str, str]
    """Swept field -> its value."""
    validation: Figures
    """Figures by video."""

    @property
    def label(self) -> str:
        """The member and its settings, for example `rgb-2 (optimizer.lr 0.03)`."""
        return label_of(self.trainer, self.settings)

    @property
    def judged_by(self) -> str:
        """The metric by which it is compared."""
        return judged_by(self.validation)

    @property
    def value(self) -> float:
        """The value of that metric."""
        return self.validation[self.judged_by]


def standings(run: Run) -> dict[str, tuple[Standing, ...]]:
    """Sweep -> its members, best first: by top-1 of the validation videos, or mAP for labels. Ties are broken by log
    loss."""
    if run.model.validation is None:
        return {}
    trainers, figures = run.spec.trainers, run.model.validation.members
    found = {
        sweep: [Standing(name, words(trainers[name].sweep), figures[name]) for name in names]
        for sweep, names in run.spec.sweeps.items()
    }
    return {sweep: tuple(sorted(members, key=lambda one: rank(one.validation))) for sweep, members in found.items()}


def best_of_sweeps(run: Run) -> tuple[str, ...]:
    """A line for each sweep with its best member."""
    return tuple(
        f"best of {len(members)} in sweep {sweep}: {members[0].label}, {NAMES[members[0].judged_by]} "
        f"{percent(members[0].value)} on validation"
        for sweep, members in standings(run).items()
    )

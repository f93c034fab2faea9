"""How the members of a job's sweeps compare, best first, by the validation split.

The test split has no say: it is what the chosen one is measured on. A job without validation split has no order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from essp.report.facts import Run
from essp_common.artifacts.figures import NAMES, Figures, judged_by, rank
from essp_common.job.sweeps import words
from essp_common.quantities import percent


@dataclass(frozen=True, slots=True)
class Standing:
    """One member of a sweep."""

    trainer: str
    settings: Mapping[str, str]
    """Swept field -> its value."""
    validation: Figures
    """By video."""

    @property
    def label(self) -> str:
        """The member and its settings, as in `rgb-2 (optimizer.lr 0.03)`."""
        return f"{self.trainer} ({', '.join(f'{field} {value}' for field, value in self.settings.items())})"

    @property
    def judged_by(self) -> str:
        """The metric that it is compared by."""
        return judged_by(self.validation)

    @property
    def value(self) -> float:
        """What that metric is."""
        return self.validation[self.judged_by]


def standings(run: Run) -> dict[str, tuple[Standing, ...]]:
    """Sweep -> its members, best first: by top-1 of the validation videos, where labels are learned by mAP; of equal
    ones by log loss."""
    if run.model.validation is None:
        return {}
    trainers, figures = run.spec.trainers, run.model.validation.members
    found = {
        sweep: [Standing(name, words(trainers[name].sweep), figures[name]) for name in names]
        for sweep, names in run.spec.sweeps.items()
    }
    return {sweep: tuple(sorted(members, key=lambda one: rank(one.validation))) for sweep, members in found.items()}


def best_of_sweeps(run: Run) -> tuple[str, ...]:
    """A line for each sweep, which names its best member."""
    return tuple(
        f"best of {len(members)} in sweep {sweep}: {members[0].label}, {NAMES[members[0].judged_by]} "
        f"{percent(members[0].value)} on validation"
        for sweep, members in standings(run).items()
    )

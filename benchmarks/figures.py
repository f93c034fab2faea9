"""What a benchmark gives, and how much is measured for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.embedded import NullJob
from benchmarks.inputs import Videos, VideoSet, make
from benchmarks.measure import Costs, Ratio
from benchmarks.peers import Clip
from essp_common.catalog.file import read_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.wiring import Stores
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import Plan, PlannedClip


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should be."""

    most: float | None = None
    least: float | None = None

    def met(self, value: float) -> bool:
        """Whether the value is what it should be."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def __str__(self) -> str:
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"


@dataclass(frozen=True)
class Figure:
    """One line of the result."""

    name: str
    value: float
    unit: str
    aim: Aim | None = None
    low: float | None = None
    high: float | None = None
    """Between what the rounds lie."""
    detail: Mapping[str, float | str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, ratio: Ratio, aim: Aim | None, detail: Mapping[str, float | str]) -> Figure:
        """A ratio of costs."""
        return cls(name, ratio.median, "ratio", aim, ratio.low, ratio.high, detail)

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Self:
        """From what `written` gave; more in it has no effect."""
        names = ("name", "value", "unit", "low", "high", "detail")
        aim = None if written["aim"] is None else Aim(**written["aim"])
        return cls(aim=aim, **{name: written[name] for name in names})

    def written(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"met": self.aim.met(self.value) if self.aim is not None else None}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    root: Path
    """Where videos are kept from one run to the next."""
    clips: int = 30
    """Clips of the shorter of the two runs that make a cost."""
    rounds: int = 3
    quick: bool = False
    """Small numbers that mean nothing: to see that everything works."""
    full: bool = False
    """Also the larger videos."""
    photographs: Path | None = None
    """A folder of such as ImageNet has."""

    def catalog(self, videos: Videos) -> Path:
        """The catalog of a set, made if need be."""
        if self.quick and isinstance(videos, VideoSet):
            videos = replace(videos, frames=max(60, videos.frames // 5), videos=min(3, videos.videos))
        return make(videos, self.root)


def clips_of(job: NullJob, count: int) -> list[Clip]:
    """The first training clips of a job, as its plan has them."""
    plan, rows = _training(job, count)
    return [_asked(rows, plan.clip(index)) for index in range(count)]


def units_of(job: NullJob, count: int) -> list[list[Clip]]:
    """The first training clips of a job, those of a video together that its plan issues together."""
    plan, rows = _training(job, count)
    return [[_asked(rows, clip) for clip in unit] for unit in plan.units(0, count)]


def _training(job: NullJob, count: int) -> tuple[Plan, Sequence[VideoRow]]:
    catalog = read_catalog(*Stores(("file:///",)).resolve(f"file://{job.catalog}"))
    phases = Phases(job.spec(count, "file:///tmp"), catalog)
    return phases.plan(0), phases.view(0).rows


def _asked(rows: Sequence[VideoRow], clip: PlannedClip) -> Clip:
    path = rows[clip.video].uri.removeprefix("file://")
    return Clip(path, clip.first_frame, clip.frame_count, clip.stride)


def costs_in_ms(costs: Costs) -> dict[str, float | str]:
    """The least CPU and wall time of each piece of work, for reading."""
    detail: dict[str, float | str] = {}
    for name, values in costs.items():
        detail[f"{name}_cpu_ms"] = round(min(cost.cpu_ms for cost in values), 3)
        detail[f"{name}_wall_ms"] = round(min(cost.wall_ms for cost in values), 3)
    return detail

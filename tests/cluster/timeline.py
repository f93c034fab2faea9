"""What happened during a run on a cluster, in seconds since its job was started: a document, and one picture of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

UNKNOWN, AWAY, READY, LEADS = -1, 0, 1, 2
"""States of a lane: of a server, a node or a pod; one of several masters leads."""
_COLOURS = {UNKNOWN: "#dddddd", READY: "#8fb8de", LEADS: "#1f5fa8"}
_LANE = 0.7
_STYLE: Any = {"svg.hashsalt": "essp", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False}


@dataclass
class Lane:
    """One server, node or pod: what it was when it changed."""

    changes: list[tuple[float, int]] = field(default_factory=list)
    """Seconds, and the state from then on; nothing is known of it before."""

    def note(self, at_s: float, state: int) -> None:
        """It is in this state now."""
        if not self.changes or self.changes[-1][1] != state:
            self.changes.append((round(at_s, 1), state))

    def spans(self, state: int, end_s: float) -> list[tuple[float, float]]:
        """Begin and length of each time in a state, until the end of the run."""
        ends = [at for at, _ in self.changes[1:]] + [end_s]
        return [(at, end - at) for (at, is_), end in zip(self.changes, ends, strict=True) if is_ == state and end > at]


@dataclass
class Outage:
    """One fault."""

    what: str
    """`a broker`, ..."""
    begin_s: float
    end_s: float = 0.0
    """When all was up again that it had taken along."""
    still_s: float = 0.0
    """The longest time without a trained clip, of those that begin before `end_s` and end after `begin_s`."""


@dataclass
class Timeline:
    """A run as it was seen."""

    began: float = field(default_factory=time.monotonic)
    trained: list[tuple[float, int]] = field(default_factory=list)
    """Seconds, and clips that trainers had reported as trained by then, each once a trainer."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    outages: list[Outage] = field(default_factory=list)
    end_s: float = 0.0

    def now_s(self) -> float:
        """Seconds since the job was started."""
        return time.monotonic() - self.began

    def note(self, lane: str, state: int) -> None:
        """A lane is in this state now."""
        self.lanes.setdefault(lane, Lane()).note(self.now_s(), state)

    def count(self, clips: int) -> None:
        """So many clips have been trained by now."""
        if not self.trained or self.trained[-1][1] != clips:
            self.trained.append((round(self.now_s(), 2), clips))

    def finish(self) -> None:
        """Work out what the faults cost."""
        self.end_s = round(self.now_s(), 1)
        times = [at for at, _ in self.trained]
        for outage in self.outages:
            gaps = [
                later - earlier
                for earlier, later in pairwise(times)
                if earlier < outage.end_s and later > outage.begin_s
            ]
            outage.still_s = round(max(gaps, default=0.0), 1)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "seconds": self.end_s,
            "outages": [asdict(outage) for outage in self.outages],
            "trained": self.trained,
            "lanes": {name: lane.changes for name, lane in self.lanes.items()},
        }


def drawn(run: Mapping[str, Any], path: Path) -> None:
    """Draw the document of a run: clips trained above, below what was up, with each fault as a stripe. Light blue is
    ready, dark blue leads, and of what is grey nothing was known."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    lanes: dict[str, Lane] = {name: Lane([(at, state) for at, state in it]) for name, it in run["lanes"].items()}
    end_s = run["seconds"]
    with mpl.rc_context(_STYLE):
        figure, (above, below) = pyplot.subplots(
            2, 1, sharex=True, figsize=(9, 2.6 + 0.22 * len(lanes)), layout="constrained",
            height_ratios=[2.0, 0.22 * len(lanes)],
        )  # fmt: skip
        above.step(*zip(*[(0, 0), *run["trained"]], strict=True), where="post", color="black", lw=1.2)
        above.set(ylabel="clips trained", ylim=(0, None), xlim=(0, end_s))
        for number, outage in enumerate(run["outages"]):
            for axes in (above, below):
                axes.axvspan(outage["begin_s"], outage["end_s"], color="#e8a0a0", alpha=0.45, lw=0)
            height = 1.02 + 0.08 * (len(run["outages"]) - 1 - number)  # names are longer than some faults
            above.text(
                outage["begin_s"], height, f"{outage['what']} dies", transform=above.get_xaxis_transform(), fontsize=8
            )
        for place, lane in enumerate(lanes.values()):
            for state, colour in _COLOURS.items():
                below.broken_barh(lane.spans(state, end_s), (place - _LANE / 2, _LANE), facecolors=colour)
        below.set(xlabel="seconds since the job was started", ylim=(len(lanes) - 0.4, -0.6))
        below.set_yticks(range(len(lanes)), list(lanes))
        below.tick_params(axis="y", length=0)
        figure.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(figure)

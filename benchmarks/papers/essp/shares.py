"""Ranks that move by validation loss: how often is it worth dividing them again, after each epoch or more often?

The simulation of `python -m benchmarks --only gpu_allocation` (trainers that arrive one after the other on a cluster of
eight GPUs), with validation after every epoch, or after each half, fifth or tenth of one. Its loss is then measured
that much more often, with the same noise, and ranks may move that much sooner; each move costs a checkpoint and a
restart. In a job, this number of clips is `sampling.clips_per_epoch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from benchmarks.gpus import GPUS, RULES, Rule, Run, runs
from benchmarks.papers.document import markdown, spread
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values

PIECES = (1, 2, 5, 10)
"""Validations in an epoch."""
_SHOWN = 4
"""The seed whose shares are drawn."""
_EVERY = 4
"""Of its periods, every fourth is drawn."""
_PERIOD_S, _MOVE_S, _END_S = 300, 45, 48 * 3600


@dataclass
class Finer(Run):
    """A training that is validated several times in an epoch: each piece counts as an epoch of its own."""

    pieces: int = 1

    def loss(self, epochs: float) -> float:
        """Its loss after this number of pieces."""
        return super().loss(epochs / self.pieces)


def _finer(run: Run, pieces: int) -> Finer:
    return Finer(
        run.name,
        run.arrival_s,
        run.epochs_per_s * pieces,
        run.power,
        run.floor,
        run.total_epochs * pieces,
        run.noise,
        pieces=pieces,
    )


def simulate(rule: Rule, seed: int, pieces: int) -> dict[str, Any]:
    """Mean seconds until trainers have made 90 % of their fall, the moves, and the shares over time."""
    trainers = [_finer(run, pieces) for run in runs(seed)]
    shares: dict[str, int] = {}
    seen: dict[str, int] = {}
    course: list[dict[str, int]] = []
    moves = 0
    for now_s in range(0, _END_S, _PERIOD_S):
        active = [run for run in trainers if run.arrival_s <= now_s and not run.finished]
        if not active and all(run.finished for run in trainers):
            break
        present = {run.name: shares.get(run.name, 0) for run in active}
        counts = {run.name: len(run.losses) for run in active}
        shares = dict(rule([run.seen() for run in active], GPUS, present)) if counts != seen else present
        seen = counts  # as the master does: ranks are divided again after a validation, and not in between
        course.append(dict(shares))
        for run in active:
            moved = shares[run.name] != present[run.name]
            moves += moved
            run.advance(_PERIOD_S - _MOVE_S * moved, shares[run.name], now_s + _PERIOD_S)
    nearly = [run.nearly_s if run.nearly_s is not None else _END_S for run in trainers]
    return {"seconds": sum(nearly) / len(nearly), "moves": moves, "course": course}


def compared(pieces: int, seeds: int) -> dict[str, Any]:
    """By improvement and by fair shares, over seeds."""
    found: dict[str, Any] = {"ratios": [], "moves": [], "seconds": []}
    for seed in range(seeds):
        ours, fair = (simulate(RULES[name], seed, pieces) for name in ("by_improvement", "fair"))
        found["ratios"].append(round(fair["seconds"] / ours["seconds"], 3))
        found["moves"].append(ours["moves"])
        found["seconds"].append(round(ours["seconds"]))
        if seed == _SHOWN % seeds:
            found["course"] = ours["course"]
    return found


def _steps(options: Options) -> Steps:
    for pieces in PIECES:
        yield f"{pieces}", partial(apart, compared, pieces, 2 if options.quick else 20)


def _table(values: Values) -> str:
    rows = []
    for key, value in values.items():
        when = "after each epoch" if key == "1" else f"{key} times in an epoch"
        hours = spread([seconds / 3600 for seconds in value["seconds"]], "{:.2f}")
        rows.append([when, spread(value["ratios"], "{:.2f}"), hours, spread(value["moves"], "{:.0f}")])
    head = [
        "validation",
        "time to 90 % of the fall: fair shares / by loss",
        "hours to it",
        "moves, of all training runs",
    ]
    return markdown(head, rows)


def _draw(values: Values) -> Figure | None:
    shown = [key for key in ("1", "10") if key in values]
    figure = Figure(figsize=(4.2 * len(shown), 3.0), layout="constrained")
    for place, key in enumerate(shown, 1):
        axes: Any = figure.add_subplot(1, len(shown), place)
        course = values[key]["course"][::_EVERY]
        names = sorted({name for shares in course for name in shares}, key=lambda name: int(name.rpartition("-")[2]))
        hours = [number * _EVERY * _PERIOD_S / 3600 for number in range(len(course))]
        counts = [[shares.get(name, 0) for shares in course] for name in names]
        axes.stackplot(hours, counts, step="post")
        axes.set_title("validation after each epoch" if key == "1" else f"{key} times in an epoch")
        axes.set_xlabel("hours")
        axes.set_ylabel("GPUs; a colour for each training")
    return figure


PART = Part("shares", "GPUs of each training over time, divided by validation loss", _steps, _table, _draw, uses=())

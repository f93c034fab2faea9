"""`python -m tests.soak --minutes 5 --seed 1`: see `run.py`. Exits with 1 if an invariant does not hold."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tests.soak.run import SoakOptions, soak
from tests.soak.verdict import Figures, violations


def main(
    minutes: Annotated[float, typer.Option(help="Faults are made for so long.", min=0.1)] = 5.0,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 1,
    interval: Annotated[float, typer.Option(help="Mean seconds between two faults.", min=0.1)] = 3.0,
    epochs: Annotated[int, typer.Option(help="Of each job.", min=1)] = 3,
    clips: Annotated[int, typer.Option(help="Of each epoch.", min=4)] = 64,
    folder: Annotated[Path | None, typer.Option(help="Keep videos and logs here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Run jobs on a real deployment while its processes, cache and bus are hit at random."""
    options = SoakOptions(60 * minutes, seed, interval, epochs, clips)

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        figures = soak(options, folder.absolute(), tell)
    else:
        with tempfile.TemporaryDirectory(prefix="essp-soak-") as temporary:
            figures = soak(options, Path(temporary), tell)
    print(json.dumps(figures.document(), indent=2) if as_json else _summary(figures))
    raise typer.Exit(1 if violations(figures) else 0)


def _summary(figures: Figures) -> str:
    counted = figures.traffic
    lines = [
        f"{len(figures.rounds)} jobs in {figures.seconds:.0f} s, seed {figures.seed}",
        f"seeds: {counted.seeds_published} published, {counted.seeds} different",
        f"decoded: {counted.decoded}, of these again {counted.decoded - counted.decoded_clips}",
        f"trained: {sum(sum(c.values()) for c in counted.trained_clips.values())} clips by all trainers",
        f"duplicates absorbed: {counted.duplicates}",
        f"records that hold no message: {dict(counted.refused)}; dead letters: {dict(counted.dead_letters)}",
        *(f"{kind}: {dict(pools)}" for kind, pools in sorted(figures.faults.items())),
        f"restarts: {figures.restarts}",
        f"outstanding at most: {figures.outstanding_bytes} of {figures.budget_bytes} bytes; "
        f"in Redis: {figures.redis_bytes}",
        f"audited: {sum(done.audited for done in figures.rounds)} invariants of {len(figures.rounds)} jobs",
        f"keys left: {sum(done.keys_left for done in figures.rounds)}, processes left: {figures.processes_left}",
    ]
    broken = violations(figures)
    return "\n".join([*lines, *(f"VIOLATED: {text}" for text in broken), "failed" if broken else "all invariants held"])


if __name__ == "__main__":
    typer.run(main)

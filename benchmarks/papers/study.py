"""A paper's experiments as parts, and a part as steps: measurements are saved step by step, in one file for each part.

A step is a name and a function that returns JSON. `run` runs those that the file does not have, and writes the file
after each, so that a kill loses one step. A file holds the options that change the numbers, the machine, and for each
step its value, its time, its duration, and the load average before and after it.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.papers.machine import load, machine

_NUMBERS = re.compile(r"\[\n[-+.,eE\d\s]*\]")
"""A list of numbers over several lines; no string has a line break in JSON."""
FIRST = "/0"
"""The end of the name of a run that only warms up, if there are others."""
Json = Any
Steps = Iterator[tuple[str, Callable[[], Json]]]
Values = Mapping[str, Json]
"""Step -> its value."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run."""

    work: Path
    """Where videos and other large files are kept from one run to the next."""
    videos: Path | None = None
    """A folder of real videos, a folder for each class; None: parts that need one are left out."""
    images: Path | None = None
    """CIFAR-10 as images: a folder or archive with `train` and `test`, a folder for each class in each."""
    photos: Path | None = None
    """A folder of photographs."""
    tensorflow: Path | None = None
    """The Python of an environment that has TensorFlow; None: tf.data is not measured."""
    rounds: int = 3
    quick: bool = False
    """Small numbers that mean nothing: to see that everything runs."""


@dataclass(frozen=True)
class Part:
    """One experiment."""

    name: str
    about: str
    """One line for `--help`."""
    steps: Callable[[Options], Steps]
    table: Callable[[Values], str]
    """As Markdown, of the steps that there are."""
    draw: Callable[[Values], Figure | None] = lambda _: None
    quiet: bool = False
    """Its figures are of the clock, so that other work on the machine spoils them."""
    uses: tuple[str, ...] = ("rounds",)
    """The options that change its numbers."""
    needs: tuple[str, ...] = ()
    """The options without which it is left out."""


def run(part: Part, options: Options, path: Path, resume: bool) -> Values:
    """Run the steps that the file lacks; without `resume`, all of them. Returns the value of each step.

    Raises `ValueError` if the file is from another machine, or from a run with other options.
    """
    held: dict[str, Any] = {"part": part.name, "machine": machine(), "asked": _asked(part, options), "steps": {}}
    if resume and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in ("machine", "asked") if before[name] != held[name]]
        if differing:
            raise ValueError(f"{path} was made otherwise ({', '.join(differing)}); leave --resume out")
        held = before
    for name, make in part.steps(options):
        if name in held["steps"]:
            continue
        print(f"# {part.name}: {name}", file=sys.stderr, flush=True)
        began_s, before_load = time.perf_counter(), load()
        value = make()
        held["steps"][name] = {
            "value": value,
            "seconds": round(time.perf_counter() - began_s, 1),
            "load": [before_load, load()],
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(written(held), encoding="utf-8")
        partial.replace(path)  # a kill leaves the file of before
    return values_of(held)


def written(held: Mapping[str, Any]) -> str:
    """As JSON, a list of numbers on one line."""
    return _NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(held, indent=1)) + "\n"


def _asked(part: Part, options: Options) -> dict[str, Any]:
    given = asdict(options)
    asked = {name: given[name] for name in ("quick", *part.uses)}
    return {name: value.name if isinstance(value, Path) else value for name, value in asked.items()}


def values_of(document: Mapping[str, Any]) -> Values:
    """Step -> its value."""
    return {name: step["value"] for name, step in document["steps"].items()}

"""`python -m benchmarks.check_qzp`: the combinations of Check-QZP on one training, under a loaded disk.

Q rounds to 8 bits, Z compresses by gzip, P writes in a child process; the next checkpoint waits for the last. Q is
measured with one range over all numbers of a file, as the paper prints it, and with one for each output channel, with
arrays of one dimension exact. Everything but the combination is the same: a checkpoint an epoch, of trainings that go
on from the same steps of the one in `image_training.py`, each flushed to the disk (`fsync`). `none` is `torch.save`, as
in the paper. The others are what saves a trainer (`checkpoint_saver.py`), without planes and differences, which the
paper does not have; that reads each file back.

    wait       seconds that the training waited for all its checkpoints
    training   seconds from the first step until the last checkpoint was on the disk
    bytes      of a checkpoint, over those of its numbers in memory
    accuracy   on test images, of the weights in the last checkpoint
    resumed    the same after as many more steps from the last checkpoint, weights and momentum as they were restored

Prints a table, and writes `check_qzp.json` to `--results`. Each combination trains in turn, `--rounds` times, each
round beginning with another one; times are the median. docs/check-qzp.md has a run beside the paper's numbers.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.checkpoint_saver import Saver, torch_save
from benchmarks.disk_load import loaded
from benchmarks.hogwild import Images, Labels, made_up, read_images
from benchmarks.image_training import BATCH, ImageTraining, State
from essp_common.quantities import percent, size
from essp_common.runtime.process import cpu_count
from essp_common.tensors.packed import Codec, Packing, Scope, unpack
from essp_engine.learning.models import arrays_of

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Way:
    """One combination."""

    name: str
    scope: Scope = "channel"
    """With Q."""

    @property
    def packing(self) -> Packing | None:
        """How files are written; None: by `torch.save`."""
        codec: Codec = "gzip" if "Z" in self.name else "none"
        if "Q" in self.name:
            return Packing(8, self.scope, self.scope == "channel", codec, planes=False)
        return Packing(codec=codec, planes=False) if self.name != "none" else None

    def __str__(self) -> str:
        return f"{self.name}, {self.scope}" if "Q" in self.name else self.name


WAYS = (
    *(Way(name) for name in ("none", "Z", "P", "ZP")),
    *(Way(name, scope) for name in ("Q", "QZ", "QP", "QZP") for scope in ("global", "channel")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training came to."""

    wait_s: float
    training_s: float
    share: float
    """Bytes of a checkpoint over those of its numbers."""
    accuracy: float
    resumed: float


def _read(packing: Packing | None, folder: Path, files: list[str]) -> State:
    if packing is None:
        return {file: arrays_of(torch.load(folder / file)) for file in files}
    return {file: unpack((folder / file).read_bytes()) for file in files}


@dataclass(frozen=True, slots=True)
class Course:
    """What is trained."""

    train: tuple[Images, Labels]
    test: tuple[Images, Labels]
    begin: State
    """The state that each training begins with."""
    warm: int
    """Steps until there."""
    epochs: int
    steps: int
    """Steps of an epoch."""

    def run(self, way: Way, folder: Path) -> Outcome:
        """One training by one combination."""
        training = ImageTraining(*self.train)
        training.load(self.begin, self.warm)
        saver = None if way.packing is None else Saver(folder, "P" in way.name, way.packing)
        wait_s, began_s = 0.0, time.perf_counter()
        for _ in range(self.epochs):
            for _ in range(self.steps):
                training.step()
            asked_s = time.perf_counter()
            if saver is None:
                torch_save(training.tensors(), folder)
            else:
                saver.save(training.tensors())
                saver.wait_for_copy()
            wait_s += time.perf_counter() - asked_s
        asked_s = time.perf_counter()
        if saver is not None:
            saver.finish()
        ended_s = time.perf_counter()
        if saver is not None:
            saver.close()
        state = training.state()
        restored = _read(way.packing, folder, list(state))
        resumed = ImageTraining(*self.train)
        resumed.load(restored, training.steps)
        accuracy = resumed.accuracy(*self.test)
        for _ in range(self.steps):
            resumed.step()
        numbers = sum(array.nbytes for arrays in state.values() for array in arrays.values())
        stored = sum((folder / file).stat().st_size for file in state)
        return Outcome(
            wait_s + ended_s - asked_s, ended_s - began_s, stored / numbers, accuracy, resumed.accuracy(*self.test)
        )


def main(
    images: Annotated[str, typer.Option(help="A folder or an archive with train and test; default: made up.")] = "",
    count: Annotated[int, typer.Option(help="Training images.", min=BATCH)] = 2000,
    tested: Annotated[int, typer.Option(help="Test images.", min=1)] = 400,
    warm: Annotated[int, typer.Option(help="Steps of the one training that all of them go on from.", min=1)] = 160,
    steps: Annotated[int, typer.Option(help="Steps between two checkpoints.", min=1)] = 20,
    epochs: Annotated[int, typer.Option(help="Checkpoints of a training.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="How often each combination is measured.", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Threads that read and write at random beside it.", min=1)] = 16,
    folder: Annotated[Path | None, typer.Option(help="A folder on the disk to write to.")] = None,
    results: Annotated[Path, typer.Option(help="Where the results are written.")] = RESULTS,
) -> None:
    """Measure, print a table as it comes, write JSON."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = Path(temporary)
        if images:
            train, test = (read_images(images, root, part) for part in ("train", "test"))
        else:
            train, test = made_up(count, 0), made_up(tested, 1)
        train, test = _some(train, count), _some(test, tested)
        warmed = ImageTraining(*train)
        for _ in range(warm):
            warmed.step()
        course = Course(train, test, warmed.state(), warm, epochs, steps)
        found: dict[str, list[Outcome]] = {str(way): [] for way in WAYS}
        with loaded(root, jobs=jobs) as done:
            began_s = time.perf_counter()
            for number in range(rounds):
                begin = number * len(WAYS) // rounds  # what comes first in one round comes later in another
                for way in (*WAYS[begin:], *WAYS[:begin]):
                    outcome = course.run(way, root)
                    found[str(way)].append(outcome)
                    print(_line(str(way), outcome), flush=True)
            per_s = done.value / (time.perf_counter() - began_s)
    document = {
        "rows": {name: [asdict(one) for one in runs] for name, runs in found.items()},
        "facts": {
            "images": images or "made up",
            "count": len(course.train[1]),
            "epochs": epochs,
            "steps": steps,
            "warm": warm,
        }
        | {"cpus": cpu_count(), "load": os.getloadavg()[0], "disk_operations_per_s": round(per_s), "jobs": jobs},
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / "check_qzp.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"beside it, {size(per_s * 4096)} a second in blocks of 4 KiB")
    for name, runs in found.items():
        waits = statistics.median(one.wait_s for one in runs)
        share = waits / statistics.median(one.wait_s for one in found["none"])
        trains = statistics.median(one.training_s for one in runs)
        print(f"{name:12} waits {waits:6.2f} s, {percent(share):>7} of torch.save; trains {trains:6.1f} s")


def _some(images: tuple[Images, Labels], count: int) -> tuple[Images, Labels]:
    """So many of them at most, of all classes."""
    step = max(1, len(images[1]) // count)
    return images[0][::step][:count], images[1][::step][:count]


def _line(name: str, outcome: Outcome) -> str:
    return (
        f"{name:12} wait {outcome.wait_s:7.2f} s, training {outcome.training_s:7.1f} s, "
        f"bytes {percent(outcome.share):>7}, accuracy {percent(outcome.accuracy):>7}, "
        f"resumed {percent(outcome.resumed):>7}"
    )


if __name__ == "__main__":
    typer.run(main)

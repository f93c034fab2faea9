"""The tests, many times in a row: whether one of them fails now and then, and what it takes.

    python -m tests.repeat --runs 10 --loaded 5           `make test`, the last five while two loops keep two cores busy
    python -m tests.repeat --runs 20 -- tests/contract    only these, by `pytest tests/contract`

It goes on after a failure, writes each run's output and `summary.json` into a folder, prints a table of all runs, and
ends with status 1 if a test failed in any of them or a run did not come to its end. Interrupted (Ctrl-C, SIGTERM), it
ends the run in hand, and says what the runs before came to. The busy loops end with it, however it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

BUSY_LOOPS = 2
_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: os._exit(len(sys.stdin.read())), daemon=True).start()
while True: pass
"""
"""Reads its standard input to the end, which comes when whoever started it is gone."""
_END_S = 60.0
"""How long an interrupted run may take to stop its servers."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    number: int
    loaded: bool
    passed: int
    failed: tuple[str, ...]
    """The tests that failed, or whose set-up or clean-up did."""
    duration_s: float
    finished: bool = True
    """It came to its end: pytest wrote its results and said nothing but that tests failed."""

    @property
    def sound(self) -> bool:
        """Nothing is to be looked into."""
        return self.finished and not self.failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests as often as told. Gives the exit status."""
    options = _parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the first: nohup and `&` have it ignored
        signal.signal(signal_number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        for number in range(1, options.runs + 1):
            loaded = number > options.runs - options.loaded
            with busy_loops(BUSY_LOOPS if loaded else 0):
                runs.append(run(number, loaded, options.pytest, options.out))
            (options.out / "summary.json").write_text(json.dumps([asdict(made) for made in runs], indent=2) + "\n")
            print(row(runs[-1]), flush=True)
    print("\n" + table(runs))
    return 0 if len(runs) == options.runs and all(made.sound for made in runs) else 1


def run(number: int, loaded: bool, arguments: Sequence[str], folder: Path) -> Run:
    """One run: its output goes to `run-NN.log`, its results to `run-NN.xml`."""
    results, log = (folder / f"run-{number:02}.{kind}" for kind in ("xml", "log"))
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *arguments] if arguments else ["make", "test"]
    added = f"{os.environ.get('PYTEST_ADDOPTS', '')} --junitxml={results.resolve()}"
    began_s = time.monotonic()
    with log.open("wb") as output:
        status = _status(command, os.environ | {"PYTEST_ADDOPTS": added.strip()}, output.fileno())
    return summarized(number, loaded, time.monotonic() - began_s, status, results)


def summarized(number: int, loaded: bool, duration_s: float, status: int, results: Path) -> Run:
    """What a run came to, by its exit status and by what it wrote."""
    try:
        suites = ElementTree.parse(results).getroot()
    except (OSError, ElementTree.ParseError):
        return Run(number, loaded, 0, (), duration_s, finished=False)
    outcomes: dict[str, bool] = {}
    for case in suites.iter("testcase"):
        failed = case.find("failure") is not None or case.find("error") is not None
        if case.find("skipped") is None:
            name = node_id(case.get("classname", ""), case.get("name", ""))
            outcomes[name] = outcomes.get(name, False) or failed
    failures = tuple(name for name, failed in outcomes.items() if failed)
    finished = (status == 0) == (not failures) and bool(outcomes)
    return Run(number, loaded, len(outcomes) - len(failures), failures, duration_s, finished)


def node_id(classname: str, name: str) -> str:
    """The name by which pytest runs the test again. `classname`: folders, file and classes, which have capitals."""
    parts = classname.split(".")
    classes = [part for part in parts if part[:1].isupper()]
    file = "/".join(parts[: len(parts) - len(classes)]) + ".py"
    return "::".join([file, *classes, name])


def table(runs: Sequence[Run]) -> str:
    """All runs, in Markdown."""
    head = ["| run | load | passed | failed | minutes | tests that failed |", "|--|--|--|--|--|--|"]
    return "\n".join([*head, *map(row, runs)])


def row(made: Run) -> str:
    """A run's line of the table."""
    load = f"{BUSY_LOOPS} busy loops" if made.loaded else "none"
    told = ", ".join(f"`{name}`" for name in made.failed) + ("" if made.finished else " did not come to its end")
    counts = f"{made.passed} | {len(made.failed)} | {made.duration_s / 60:.1f}"
    return f"| {made.number} | {load} | {counts} | {told.strip()} |"


@contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """So many processes that do nothing but compute, until the block ends, or this process does."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            loops.append(subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE, start_new_session=True))
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.communicate()


def _status(command: Sequence[str], environment: dict[str, str], output: int) -> int:
    """Run a command to its end; interrupted, interrupt it once, and wait until it has cleaned up."""
    # A session of its own: of an interrupt at the terminal, only this process hears.
    process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.repeat", description="Run the tests many times in a row.")
    parser.add_argument("--runs", type=int, default=10, help="how often (default: 10)")
    parser.add_argument(
        "--loaded", type=int, default=0, help="so many of them, the last ones, on busy cores (default: 0)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/repeat"), help="folder of results (default: build/repeat)"
    )
    parser.add_argument("pytest", nargs="*", help="what to tell pytest; nothing: `make test`")
    return parser


if __name__ == "__main__":
    sys.exit(main())

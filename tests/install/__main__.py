"""See `tests/install/__init__.py`. Exits with 1 if a combination fails. It needs nothing but Python and pip."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path

from tests.install import readme
from tests.install.environments import build_wheel, environment, oldest
from tests.install.steps import Step, steps
from tools.pythons import pythons

INSTALL_LIMIT_S, STEP_LIMIT_S = 3600, 900
BUILDS, PACKAGES = ("cpu", "cuda"), ("newest", "oldest")
_TAIL_LINES = 15


@dataclass
class Result:
    """Of one combination."""

    python: str
    build: str
    packages: str
    versions: str = ""
    """Of torch and torchvision, as they were installed."""
    install_s: float = 0
    steps_s: float = 0
    megabytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Of each step that was done."""
    failed: str = ""
    """The step that failed."""
    said: str = ""
    """The last lines that it printed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.install", description="Install ESSP as the README says.")
    here = pythons()
    parser.add_argument("--python", nargs="+", choices=sorted(here), default=sorted(here), help="which of those here")
    parser.add_argument("--torch", nargs="+", choices=BUILDS, default=BUILDS, help="builds of torch")
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES)
    parser.add_argument("--cpu-torch", help="what pip is to install instead of the README's line for CPUs, "
                        "where its index cannot be reached: 'torch==2.13.0 torchvision'")  # fmt: skip
    parser.add_argument("--no-examples", dest="examples", action="store_false", help="leave out docs/examples")
    parser.add_argument("--folder", type=Path, help="work and keep logs here; default: a temporary folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args()
    results = []
    if chosen.folder:
        chosen.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="essp-install-", dir=chosen.folder) as temporary:
        folder = Path(temporary)
        wheel = build_wheel(folder)
        for version, build, packages in product(chosen.python, chosen.torch, chosen.packages):
            result = Result(version, build, packages)
            work = folder / f"{version}-{build}-{packages}"
            work.mkdir()
            constraints = folder / "none.txt"
            constraints.touch()
            try:
                if packages == "oldest":
                    constraints = oldest(version, folder, torch=build == "cuda" or chosen.cpu_torch is None)
                install = readme.install(wheel, build == "cpu", chosen.cpu_torch)
                examples = chosen.examples and packages == "newest"
                attempt(result, work, here[version], constraints, install, wheel, steps(examples))
            except subprocess.CalledProcessError as error:
                result.failed, result.said = "oldest versions", str(error)
            results.append(result)
            print(row(result) + (f"\n{result.said}" if result.failed else ""), file=sys.stderr, flush=True)
            shutil.rmtree(work)
    print(json.dumps([asdict(result) for result in results], indent=1) if chosen.json else table(results))
    return int(any(result.failed for result in results))


def attempt(
    result: Result, work: Path, python: Path, constraints: Path, install: str, wheel: Path, following: Iterator[Step]
) -> None:
    """Install and run one step after another until one fails."""
    (work / "bin").mkdir()
    (work / "bin" / "python3").symlink_to(python)  # a venv of its copy would not find its library
    settings = environment(
        PATH=f"{work / 'bin'}{os.pathsep}{os.environ['PATH']}",
        PIP_CONSTRAINT=str(constraints),
        PIP_QUIET="1",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        WHEEL=str(wheel),
        CUDA_VISIBLE_DEVICES="" if result.build == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        MPLBACKEND="agg",
    )
    if not run(result, Step("install", install), work, settings, INSTALL_LIMIT_S):
        return
    result.install_s = result.seconds.pop("install")
    result.megabytes = used(work / ".venv") >> 20
    freeze = subprocess.run([work / ".venv/bin/pip", "freeze"], env=settings, capture_output=True, text=True).stdout
    result.versions = ", ".join(line for line in freeze.splitlines() if line.startswith(("torch==", "torchvision==")))
    for step in following:
        activated = Step(step.name, f". .venv/bin/activate\n{step.script}")
        succeeded = run(result, activated, work, settings, STEP_LIMIT_S)
        result.steps_s = sum(result.seconds.values())
        if not succeeded:
            return


def run(result: Result, step: Step, work: Path, settings: dict[str, str], limit_s: float) -> bool:
    """Whether the script succeeds. What it prints is kept in `result` if it does not."""
    print(f"{result.python} {result.build} {result.packages}: {step.name}", file=sys.stderr, flush=True)
    began = time.monotonic()
    log = work / "log.txt"
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", step.script],
                cwd=work,
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
            )
            status = f"exit status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            status = f"not done after {limit_s:.0f} s"
    result.seconds[step.name] = round(time.monotonic() - began, 1)
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        result.failed, result.said = step.name, "\n".join([*lines, status])
    return not status


def used(folder: Path) -> int:
    """Bytes of the files below it."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def row(result: Result) -> str:
    outcome = f"FAILED: {result.failed}" if result.failed else f"{len(result.seconds)} steps"
    return (
        f"| {result.python} | {result.build} | {result.packages} | {result.versions} | {result.install_s:.0f} "
        f"| {result.megabytes:,} | {result.steps_s:.0f} | {outcome} |"
    )


def table(results: Sequence[Result]) -> str:
    head = "| Python | torch for | packages | versions | install, s | size, MiB | run, s | result |"
    return "\n".join([head, "|---" * 8 + "|", *map(row, results)])


if __name__ == "__main__":
    sys.exit(main())

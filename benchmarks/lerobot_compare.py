"""`python -m benchmarks.lerobot_compare FOLDER`: LeRobot's data sets, by its own readers and by ESSP.

Builds an environment with LeRobot 0.6.1, torchcodec and lerobot-lancedb in FOLDER (6 GB; Python 3.12), has LeRobot
record two data sets there, compares items of LeRobot and of ESSP bit by bit, and measures the CPU of a sample of each
reader, one after the other, several times. Writes benchmarks/lerobot.json, and prints a table for README.md. With
`--train`, LeRobot's ACT policy also learns for 50 steps from ESSP's class.

LeRobot needs PyAV below 16 and ESSP needs 18, so each reader runs in its own environment; `lerobot_reader.py` is the
program, the same for all.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

_READER = Path(__file__).with_name("lerobot_reader.py")
_RESULTS = Path(__file__).with_name("lerobot.json")
_PACKAGES = ("lerobot[dataset]==0.6.1", "lerobot-lancedb==0.3.1")
_OF_TRAINING = (
    *("av>=18.1,<19", "annotated-types", "markdown-it-py", "mdurl", "prometheus-client", "protobuf", "psutil"),
    *("pydantic", "pydantic-core", "pydantic-settings", "pygments", "python-dotenv", "rich", "simplejpeg", "typer"),
    *("typing-extensions", "typing-inspection", "xxhash", "zstandard"),
)
"""What ESSP needs beside LeRobot, without what LeRobot has."""
_WAYS = (
    *(("torchcodec", "item"), ("lance", "batch"), ("essp", "item"), ("essp", "batch"), ("essp", "stream")),
    *(("torchcodec-uint8", "item"), ("essp-uint8", "batch"), ("essp-uint8", "stream"), ("essp-uint8", "shared")),
)
_CAMERAS = {"aloha": 2, "droid": 3}


def main(
    folder: Path,
    rounds: Annotated[int, typer.Option(min=1, help="How often each reader is measured.")] = 3,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 32 that are measured.")] = 12,
    train: Annotated[bool, typer.Option(help="Train LeRobot's ACT policy on ESSP's class.")] = False,
) -> None:
    """Measure, and write the results."""
    python = _environment(folder)
    sets = {kind: _recorded(folder, python, kind) for kind in (*_CAMERAS, "small")}
    equal = {kind: _equal(folder, python, sets[kind]) for kind in sets}
    measured: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for kind in _CAMERAS:
            for reader, how in _WAYS:
                root = _converted(folder, python, kind) if reader == "lance" else sets[kind]
                found = _run(python, reader, "measure", root, reader, how, batches)
                measured.setdefault(f"{kind}.{reader}.{how}", []).append(json.loads(found.splitlines()[-1]))
                print(number, kind, reader, how, found.splitlines()[-1][:80], flush=True)
        _write(sets, equal, measured)
    if train:
        done = json.loads(_train(folder, python, sets["small"]).splitlines()[-1])
        _write(sets, equal, measured, act=done)
    print(table(figures(measured)))


def _write(sets: Mapping[str, Path], equal: Mapping[str, int], measured: Mapping[str, Any], **more: Any) -> None:
    """Write all that is known so far."""
    results = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("av", "numpy", "torch")} | {"theirs": list(_PACKAGES)},
        "equal_tensors": equal,
        "bytes_of_a_frame": {kind: _frame_bytes(sets[kind]) for kind in _CAMERAS},
        "rounds": measured,
        "figures": figures(measured),
    }
    _RESULTS.write_text(json.dumps(results | more, indent=1) + "\n", encoding="utf-8")


def figures(measured: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Milliseconds of CPU of a sample, ratios to LeRobot's own and to LanceDB's reader, and samples/s of a core."""
    cost = {
        name: statistics.median(each["user_ms"] + each["system_ms"] for each in found)
        for name, found in measured.items()
    }
    found = {f"lerobot_ms.{name}": value for name, value in cost.items()}
    for kind in _CAMERAS:
        own, lance, bytes_ = (
            cost.get(f"{kind}.{name}") for name in ("torchcodec.item", "lance.batch", "torchcodec-uint8.item")
        )
        for how in ("item", "batch", "stream", "shared"):
            ours = cost.get(f"{kind}.essp.{how}") or (cost.get(f"{kind}.essp-uint8.{how}") if how == "shared" else None)
            if ours and own:
                found[f"lerobot_{how}.{kind}"] = own / ours
            if ours and lance:
                found[f"lerobot_{how}_lance.{kind}"] = lance / ours
            if ours:
                found[f"lerobot_rate_{how}.{kind}"] = 1000 / ours
            if bytes_ and (whole := cost.get(f"{kind}.essp-uint8.{how}")):
                found[f"lerobot_{how}_uint8.{kind}"] = bytes_ / whole
    for name, each in measured.items():
        if ".essp" in name and "first_cpu_s" in each[0]:
            found[f"lerobot_first_cpu_s.{name}"] = statistics.median(one["first_cpu_s"] for one in each)
    return found


def table(found: Mapping[str, float]) -> str:
    """The figures as a table of Markdown."""
    return "\n".join(
        ["| figure | value |", "|---|---|", *(f"| `{name}` | {value:.3g} |" for name, value in found.items())]
    )


def _environment(folder: Path) -> Path:
    """The Python of LeRobot's environment."""
    python = folder / "lr/bin/python"
    if not python.exists():
        subprocess.run(["python3.12", "-m", "venv", str(folder / "lr")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", *_PACKAGES], check=True)
    return python


def _recorded(folder: Path, python: Path, kind: str) -> Path:
    root = folder / "sets" / kind
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        _run(python, "torchcodec", "record", root, kind)
    return root


def _converted(folder: Path, python: Path, kind: str) -> Path:
    made = folder / "sets" / f"{kind}_lance"
    if not made.exists():
        source = str(folder / "sets" / kind)
        command = [str(python), "-m", "lerobot_lancedb.convert", "--root", source, "--out", str(made)]
        subprocess.run(command, check=True, capture_output=True)
    return made


def _equal(folder: Path, python: Path, root: Path) -> int:
    """The number of tensors of items that LeRobot and ESSP have alike. Raises `ValueError` for one that differs."""
    count = 0
    for kind in ("", "-uint8"):
        files = {}
        for reader in ("torchcodec", "essp"):
            files[reader] = folder / f"{reader}.pt"
            _run(python, reader, "dump", root, reader + kind, files[reader])
        theirs, ours = (torch.load(file, weights_only=False) for file in files.values())
        if theirs.keys() != ours.keys():
            raise ValueError(f"{theirs.keys()} and {ours.keys()}")
        for name, items in theirs.items():
            count += _same(name, items, ours[name])
    return count


def _same(name: str, theirs: Any, ours: Any) -> int:
    if isinstance(theirs, dict):
        if theirs.keys() != ours.keys():
            raise ValueError(f"{name}: {theirs.keys() ^ ours.keys()}")
        return sum(_same(f"{name}.{key}", value, ours[key]) for key, value in theirs.items())
    if isinstance(theirs, torch.Tensor):
        alike = theirs.dtype == ours.dtype and theirs.shape == ours.shape
        if not alike or not (torch.allclose if "stats" in name else torch.equal)(theirs, ours):
            raise ValueError(f"{name}: {theirs.dtype} {theirs.shape} and {ours.dtype} {ours.shape}, or other values")
        return 1
    if theirs != ours:
        raise ValueError(f"{name}: {theirs} and {ours}")
    return 0


def _run(python: Path, reader: str, *arguments: object) -> str:
    """The program's output, by the Python that has the reader."""
    program = sys.executable if reader.startswith("essp") else str(python)
    command = [program, str(_READER), *map(str, arguments)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_alone(), text=True
    )
    return done.stdout


def _alone(more: str = "") -> dict[str, str]:
    """One thread in each library, and ESSP of this folder."""
    paths = [more, str(Path(__file__).parents[1])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _train(folder: Path, python: Path, root: Path) -> str:
    """LeRobot's policy and ESSP's class in one process: LeRobot's environment, with PyAV 18 before its own."""
    beside = folder / "beside"
    if not beside.exists():
        command = [str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", "--no-deps"]
        subprocess.run([*command, "--target", str(beside), *_OF_TRAINING], check=True)
        source = str(Path(__file__).parents[1])
        subprocess.run([*command[:4], "--no-deps", "--target", str(beside), source], check=True)
    command = [str(python), str(_READER), "train", str(root), "essp", "50"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_alone(str(beside)), text=True).stdout


def _frame_bytes(root: Path) -> int:
    """Mean bytes of a compressed frame."""
    info = json.loads((root / "meta/info.json").read_text(encoding="utf-8"))
    cameras = sum(feature["dtype"] == "video" for feature in info["features"].values())
    size = sum(file.stat().st_size for file in root.rglob("*.mp4"))
    return size // int(cameras * info["total_frames"])


if __name__ == "__main__":
    typer.run(main)

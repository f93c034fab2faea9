"""`python -m benchmarks.lerobot_compare FOLDER`: LeRobot's data sets, by its own readers and by ESSP.

Builds an environment with LeRobot 0.6.1, torchcodec and lerobot-lancedb in FOLDER (6 GB; Python 3.12), has LeRobot
record data sets there, compares items of LeRobot and of ESSP bit by bit, and measures the CPU of a sample of each
reader, one after the other, several times. Writes benchmarks/lerobot.json, and prints a table for README.md. With
`--train`, LeRobot's ACT policy also learns for 50 steps, from LeRobot's class and from ESSP's.

`lerobot_environment.py` has the environment, `lerobot_reader.py` the program that reads, the same for all readers.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.lerobot_environment import PACKAGE, LeRobot, compared

_RESULTS = Path(__file__).with_name("lerobot.json")
_LANCE = "lerobot-lancedb==0.3.1"
_WAYS = (
    *(("torchcodec", "item"), ("lance", "batch"), ("essp", "item"), ("essp", "batch"), ("essp", "stream")),
    *(("torchcodec-uint8", "item"), ("essp-uint8", "batch"), ("essp-uint8", "stream"), ("essp-uint8", "shared")),
)
_CAMERAS = {"aloha": 2, "droid": 3}
_STEPS = 50


def main(
    folder: Path,
    rounds: Annotated[int, typer.Option(min=1, help="How often each reader is measured.")] = 3,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 32 that are measured.")] = 12,
    train: Annotated[bool, typer.Option(help="Train LeRobot's ACT policy on both classes.")] = False,
) -> None:
    """Measure, and write the results."""
    lerobot = LeRobot(folder, _LANCE)
    sets = {kind: _recorded(lerobot, folder, kind) for kind in (*_CAMERAS, "small")}
    equal = {kind: _equal(lerobot, root) for kind, root in sets.items()}
    measured: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for kind in _CAMERAS:
            for reader, how in _WAYS:
                root = _converted(lerobot, sets[kind]) if reader == "lance" else sets[kind]
                found = lerobot.measured(root, reader, how, batches)
                measured.setdefault(f"{kind}.{reader}.{how}", []).append(found)
                print(number, kind, reader, how, json.dumps(found)[:80], flush=True)
        _write(sets, equal, measured)
    if train:
        losses = {reader: lerobot.losses(sets["small"], reader, _STEPS) for reader in ("torchcodec", "essp")}
        _write(sets, equal, measured, act=losses)
    print(table(figures(measured)))


def _write(sets: Mapping[str, Path], equal: Mapping[str, int], measured: Mapping[str, Any], **more: Any) -> None:
    """Write all that is known so far."""
    results = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("av", "numpy", "torch")} | {"theirs": [PACKAGE, _LANCE]},
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
        for first in ("first_s", "first_cpu_s"):
            if ".essp" in name and first in each[0]:
                found[f"lerobot_{first}.{name}"] = statistics.median(one[first] for one in each)
    return found


def table(found: Mapping[str, float]) -> str:
    """The figures as a table of Markdown."""
    return "\n".join(
        ["| figure | value |", "|---|---|", *(f"| `{name}` | {value:.3g} |" for name, value in found.items())]
    )


def _recorded(lerobot: LeRobot, folder: Path, kind: str) -> Path:
    root = folder / "sets" / kind
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        lerobot.record(root, kind)
    return root


def _converted(lerobot: LeRobot, root: Path) -> Path:
    """The data set as LanceDB's reader needs it."""
    made = root.with_name(f"{root.name}_lance")
    if not made.exists():
        command = [str(lerobot.python), "-m", "lerobot_lancedb.convert", "--root", str(root), "--out", str(made)]
        subprocess.run(command, check=True, capture_output=True)
    return made


def _equal(lerobot: LeRobot, root: Path) -> int:
    """The number of tensors of items that LeRobot and ESSP have alike. Raises `ValueError` for one that differs."""
    count = 0
    for pictures in ("", "-uint8"):
        theirs, ours = (lerobot.items(root, reader + pictures) for reader in ("torchcodec", "essp"))
        count += compared(theirs, ours)
    return count


def _frame_bytes(root: Path) -> int:
    """Mean bytes of a compressed frame."""
    info = json.loads((root / "meta/info.json").read_text(encoding="utf-8"))
    cameras = sum(feature["dtype"] == "video" for feature in info["features"].values())
    size = sum(file.stat().st_size for file in root.rglob("*.mp4"))
    return size // int(cameras * info["total_frames"])


if __name__ == "__main__":
    typer.run(main)

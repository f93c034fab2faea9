"""Tries candidates for `search.py`: `python -m essp_aggregator.search_child CONNECTION SIZE MEMORY`.

    to it      {"name", "params"}                     try this candidate on the scores in MEMORY
    from it    {"weights", "validation"}, then arrays its shares and figures, then its losses and state (`packed`)
               {"error", "type", "trace"}             or the exception it raised

It touches neither bus nor store. It exits as soon as its parent is gone, even in the middle of a candidate.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from essp_aggregator.fusion import Aligned, Trial, tried
from essp_aggregator.shared_scores import scores_at
from essp_common.runtime.child_process import requests, to_parent
from essp_common.tensors.packed import Array, Packing, pack, unpack
from essp_engine.aggregation import registry

_RAW = Packing(codec="none", planes=False)
_LOSSES, _STATE = "losses", "state/"


def answer(request: dict[str, Any], scores: Aligned) -> Iterator[bytes]:
    """The messages that answer a request."""
    try:
        trial = tried(scores, registry.create(request["name"], request["params"]))
        yield from packed(trial)
    except Exception as error:  # noqa: BLE001  raised again by the parent
        said = {"error": str(error), "type": type(error).__name__, "trace": traceback.format_exc()}
        yield json.dumps(said).encode()


def packed(trial: Trial) -> tuple[bytes, bytes]:
    """Encode a trial as two messages."""
    arrays: dict[str, Array] = {_STATE + name: array for name, array in trial.state.items()}
    if trial.losses is not None:
        arrays[_LOSSES] = trial.losses
    said = {"weights": trial.weights, "validation": trial.validation}
    return json.dumps(said).encode(), pack(arrays, _RAW)


def unpacked(said: dict[str, Any], data: bytes) -> Trial:
    """The inverse of `packed`."""
    arrays = unpack(data)
    losses = arrays.pop(_LOSSES, None)
    state = {name.removeprefix(_STATE): array for name, array in arrays.items()}
    return Trial(losses, state, said["weights"], said["validation"])


def main() -> None:
    """Answer until the parent is gone."""
    parent = to_parent(sys.argv[1])
    size, memory = map(int, sys.argv[2:])
    asked, scores = requests(parent), scores_at(memory, size)
    while True:
        for message in answer(json.loads(asked.get()), scores):
            parent.send(message)


if __name__ == "__main__":
    main()

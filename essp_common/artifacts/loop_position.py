"""Where a loop of the user's own begins: the position of the state that it loaded."""

from __future__ import annotations

import json

from essp_common.artifacts import layout
from essp_common.errors import NotFound, PermanentError
from essp_common.objects.port import ObjectStore
from essp_common.planning.position import Position


def write_position(output: ObjectStore, consumer: str, position: Position) -> None:
    """Have the next run of the job begin here. `output`: the job's."""
    output.put(layout.consumer(consumer), json.dumps(position._asdict()).encode())


def read_position(output: ObjectStore, consumer: str) -> Position:
    """Where the consumer begins; at the beginning if nothing was written. Raises `PermanentError` for what is no
    position."""
    key = layout.consumer(consumer)
    try:
        text = output.get(key)
    except NotFound:
        return Position(0, 0)
    try:
        found = json.loads(text)
        position = Position(int(found["phase_index"]), int(found["index"]))
        if min(position) < 0:
            raise ValueError("positions count from 0")
        return position
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise PermanentError(f"{output.uri(key)} holds no position; delete it to begin anew") from error

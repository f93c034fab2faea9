"""Joined values: each comes back as it was, and damage is found."""

from __future__ import annotations

import numpy as np
import pytest

from essp_common.errors import BadFrames
from essp_common.pb.v1.messages_pb2 import FrameCodec
from essp_engine.video import codec
from essp_engine.video.joined import is_joined, joined, joined_bytes, separate

VIEWS = [
    np.arange(2 * 3 * 5 * 3, dtype=np.uint8).reshape(2, 3, 5, 3),
    np.arange(1 * 7 * 2 * 3, dtype=np.uint8).reshape(1, 7, 2, 3),
    np.full((4, 1, 1, 3), 9, np.uint8),
]


@pytest.mark.parametrize("name", ["raw", "zstd"])
def test_each_view_comes_back(name: str) -> None:
    values = [codec.encode(view, FrameCodec(name=name)) for view in VIEWS]
    whole = joined(values)
    assert len(whole) == joined_bytes(list(map(len, values)))
    assert is_joined(whole)
    assert not is_joined(values[0])
    for view, part in zip(VIEWS, separate(whole), strict=True):
        assert np.array_equal(codec.decode(part), view)


def test_damage_is_found() -> None:
    whole = joined([codec.encode(view, FrameCodec()) for view in VIEWS])
    for place in (0, 4, 8, 12, 16, 40):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        with pytest.raises(BadFrames):
            separate(damaged)
    for length in (0, 3, 15, 63, len(whole) - 1):
        with pytest.raises(BadFrames):
            separate(bytes(whole[:length]))
    with pytest.raises(BadFrames):
        separate(bytes(whole) + b"\0")

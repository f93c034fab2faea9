"""Clips that are scored again because a predictor left."""

from __future__ import annotations

from essp_common.topics import BLOCK_CLIPS
from essp_master.job.rescored import _MOST, Rescored


def test_it_names_who_had_scored_them_and_how_many() -> None:
    rescored = Rescored()
    rescored.scored("predictor.rgb", range(40), "one")
    rescored.scored("predictor.rgb", range(64, 70), "two")
    rescored.lost("predictor.rgb", 3, "two")
    rescored.lost("predictor.rgb", 35, "two")
    rescored.lost("predictor.rgb", 66, "two")  # its own: the cache has lost it
    rescored.lost("predictor.flow", 3, "two")  # nobody has scored that
    rescored.lost("predictor.rgb", 100, "two")
    assert rescored.take() == {"one": 2}
    assert rescored.take() == {}
    rescored.scored("predictor.rgb", [3], "two")
    rescored.lost("predictor.rgb", 4, "three")
    assert rescored.take() == {"two": 1}


def test_of_many_clips_the_last_that_were_scored_are_remembered() -> None:
    rescored, blocks = Rescored(), _MOST + 10
    for block in range(blocks):
        rescored.scored("predictor.rgb", [block * BLOCK_CLIPS], "one")
        rescored.scored("predictor.rgb", [0], "two")
    assert len(rescored._scored_by) == _MOST
    for block in (0, 1, blocks - 1):
        rescored.lost("predictor.rgb", block * BLOCK_CLIPS, "three")
    assert rescored.take() == {"two": 1, "one": 1}

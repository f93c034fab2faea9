"""Clips that are scored again because a predictor left."""

from __future__ import annotations

from essp_master.job.rescored import Rescored


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

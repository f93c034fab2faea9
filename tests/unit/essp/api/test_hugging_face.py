"""The examples that a batch becomes in a data set of Hugging Face."""

from __future__ import annotations

from typing import Any

import torch

from essp.api.epochs import Batch
from essp.api.hugging_face import _examples


def batch(frames: Any, **more: Any) -> Batch:
    return Batch(frames, torch.tensor([3, 5]), {"video": ["a", "b"]}, None, **more)


def test_an_example_has_the_frames_label_meta_and_text_of_its_clip() -> None:
    frames = torch.arange(2 * 2 * 1 * 1 * 3, dtype=torch.uint8).reshape(2, 2, 1, 1, 3)
    found = list(_examples(batch(frames, text={"caption": ["one", ["two", "three"]]})))
    assert [(each["label"], each["video"], each["text"]) for each in found] == [
        (3, "a", {"caption": "one"}),
        (5, "b", {"caption": ["two", "three"]}),
    ]
    assert [each["frames"].tolist() for each in found] == frames.tolist()


def test_a_column_of_the_catalog_replaces_nothing_of_an_example() -> None:
    """A list of videos may have a column with their numbers of frames."""
    columns = {"frames": ["250", "80"], "text": ["kick", "jab"], "label": ["k", "j"]}
    given = batch(torch.zeros(2, 1, 1, 1, 3), text={"text": ["kick", "jab"]})
    given.meta.update(columns)
    [first, _] = _examples(given)
    assert (first["frames"].shape, first["label"], first["text"]) == ((1, 1, 1, 3), 3, {"text": "kick"})
    assert {name: first[f"source_{name}"] for name in columns} == {"frames": "250", "text": "kick", "label": "k"}


def test_clips_of_different_sizes_and_views_stay_apart() -> None:
    sizes = [torch.zeros(1, height, 2, 3, dtype=torch.uint8) for height in (4, 6)]
    assert [each["frames"].shape for each in _examples(batch(sizes))] == [(1, 4, 2, 3), (1, 6, 2, 3)]
    views = {"left": torch.zeros(2, 1, 4, 4, 3), "right": torch.ones(2, 1, 2, 2, 3)}
    [first, _] = _examples(batch(views))
    assert (first["left"].shape, first["right"].shape) == ((1, 4, 4, 3), (1, 2, 2, 3))
    assert "text" not in first

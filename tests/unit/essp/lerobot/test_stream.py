"""`LeRobotDataset.stream`: each item once an epoch, in an order that decodes runs of frames."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from essp.lerobot import LeRobotDataset, Stream, collate
from tests.harness.refused import refused
from tests.harness.robots import CAMERAS, EPISODES, write_robot

FRAMES = sum(episode.length for episode in EPISODES)


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot(tmp_path_factory.mktemp("robot"))


@pytest.fixture
def data(robot: Path) -> Iterator[LeRobotDataset]:
    steps = {CAMERAS[0]: [-0.1, 0.0], CAMERAS[1]: [0.1], "action": [0.0, 0.1]}
    data = LeRobotDataset("org/robot", root=robot, delta_timestamps=steps, return_uint8=True)
    yield data
    data.close()


def indices(stream: Stream) -> list[int]:
    """Those of an epoch, in its order."""
    return [int(number) for item in stream for number in item["index"].reshape(-1)]


def test_each_item_comes_once_an_epoch_and_is_that_of_the_data_set(data: LeRobotDataset) -> None:
    stream = data.stream(clips_per_visit=4, window=16, batch_size=6)
    assert len(stream) == 8
    seen: list[int] = []
    for batch in stream:
        numbers = batch["index"].tolist()
        seen += numbers
        wanted = collate([data[number] for number in numbers])
        assert list(batch) == list(wanted)
        for name, value in wanted.items():
            assert torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] == value, name
    assert sorted(seen) == list(range(FRAMES))
    assert seen != sorted(seen)
    again = indices(stream)
    assert sorted(again) == list(range(FRAMES))
    assert again != seen
    stream.set_epoch(0)
    assert indices(stream) == seen
    assert indices(data.stream(clips_per_visit=4, window=16, seed=1)) != seen


def test_a_window_holds_whole_visits(data: LeRobotDataset) -> None:
    seen = indices(data.stream(clips_per_visit=4, window=16))
    runs = sorted(seen[:16])
    assert sum(after == before + 1 for before, after in pairwise(runs)) >= 9


def test_without_shuffling_items_come_in_the_order_of_episodes(data: LeRobotDataset) -> None:
    assert indices(data.stream(shuffle=False, clips_per_visit=4)) == list(range(FRAMES))


def test_image_transforms_are_applied_to_each_item(data: LeRobotDataset) -> None:
    data.set_image_transforms(lambda images: images[..., :10])
    batch = next(iter(data.stream(batch_size=3, shuffle=False)))
    single = next(iter(data.stream(shuffle=False)))
    assert batch[CAMERAS[0]].shape == (3, 2, 3, 48, 10)
    assert torch.equal(batch[CAMERAS[1]][0], single[CAMERAS[1]])


@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_stream_goes_on_where_it_stopped(data: LeRobotDataset, batch_size: int | None) -> None:
    def made() -> Stream:
        return data.stream(clips_per_visit=4, window=16, batch_size=batch_size)

    def numbers(item: dict[str, Any]) -> list[int]:
        return item["index"].reshape(-1).tolist()  # type: ignore[no-any-return]

    whole = [number for item in made() for number in numbers(item)]
    first, seen = made(), []
    for item in first:
        seen += numbers(item)
        if len(seen) >= 20:
            state = first.state_dict()
            break
    assert first.epoch == 1  # a `break` ends the epoch
    second = made()
    second.load_state_dict(state)
    assert seen + indices(second) == whole
    with refused("state", "invalid"):
        second.load_state_dict({"epoch": 0})


def test_ranks_share_an_epoch_evenly(data: LeRobotDataset) -> None:
    ranks = [data.stream(clips_per_visit=4, rank=rank, world_size=3) for rank in range(3)]
    seen = [indices(stream) for stream in ranks]
    assert {len(numbers) for numbers in seen} == {FRAMES // 3} == {len(stream) for stream in ranks}
    assert len({number for numbers in seen for number in numbers}) == FRAMES // 3 * 3


def test_workers_share_those_of_their_rank(data: LeRobotDataset) -> None:
    stream = data.stream(clips_per_visit=4, batch_size=5)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="fork")
    epochs = []
    for epoch in range(2):
        stream.set_epoch(epoch)
        epochs.append([number for batch in loader for number in batch["index"].tolist()])
    assert [sorted(numbers) for numbers in epochs] == [list(range(FRAMES))] * 2
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ({"clips_per_visit": 0}, "clips_per_visit", "range"),
        ({"clips_per_visit": 4, "window": 6}, "window", "conflict"),
        ({"batch_size": "8"}, "batch_size", "type"),
        ({"seed": -1}, "seed", "range"),
        ({"rank": 1}, "world_size", "missing"),
        ({"rank": 0, "world_size": 1000}, "world_size", "range"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(
    data: LeRobotDataset, arguments: dict[str, Any], field: str, code: str
) -> None:
    with refused(field, code):
        data.stream(**arguments)

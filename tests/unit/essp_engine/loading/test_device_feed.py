"""Batches on their way to the device: ahead of the model, no further than one, and what stops them reaches the model.

There is no GPU here: that a copy is started on a stream of its own, and that the model's stream waits for it, is looked
at with streams that only write down what is asked of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from essp_common.errors import OutOfMemory
from essp_common.job.feature_layout import COLOURS
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipRef, PhasePlan
from essp_engine.intake.ordered import Delivery, PhaseEnd
from essp_engine.learning.augment import training_cut, training_view
from essp_engine.learning.cut import Cut
from essp_engine.loading.batch import Batch
from essp_engine.loading.device import ToGpu, ToHost, choose_device, half_type
from essp_engine.loading.device_feed import DeviceFeed
from essp_engine.loading.device_views import DeviceViews
from essp_engine.video.colour import Colour, pictures
from tests.harness.refused import refused
from tests.harness.waiting import until

CPU = torch.device("cpu")
PLAN = PhasePlan(purpose=TRAIN, clips=6)


class Source:
    """A prefetch with a number of batches of two clips, then the end of the phase, then an error or nothing."""

    def __init__(self, batches: int, failure: Exception | None = None) -> None:
        self.given = 0
        self.closed = False
        self._failure = failure
        self.batches = [batch(number) for number in range(batches)]
        self.queued = 3

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        number, self.given = self.given, self.given + 1
        if number < len(self.batches):
            return self.batches[number]
        if number == len(self.batches):
            return PhaseEnd(0, PLAN)
        if self._failure is not None:
            raise self._failure
        time.sleep(timeout_s)
        return None

    def close(self) -> None:
        self.closed = True


def batch(number: int) -> Batch:
    frames = tuple(np.full((1, 4, 4, 3), 2 * number + i, np.uint8) for i in range(2))
    items = tuple(Delivery(0, ClipRef(index=2 * number + i), "", b"", "", None) for i in range(2))  # type: ignore[arg-type]
    return Batch(0, PLAN, 2 * number, 2 * number + 2, items, frames)


@contextmanager
def feeding(source: Source, views: DeviceViews | None = None) -> Iterator[DeviceFeed]:
    feed = DeviceFeed(source, CPU, "test", views)  # type: ignore[arg-type]
    try:
        yield feed
    finally:
        feed.close()
    assert source.closed
    assert not [thread for thread in threading.enumerate() if thread.name == "essp-device-feed-test"]


def test_batches_come_in_order_gathered_and_without_their_frames() -> None:
    with feeding(Source(3)) as feed:
        for number in range(3):
            item = feed.next(30)
            assert isinstance(item, Batch)
            assert item.begin == 2 * number
            assert item.frames == ()
            assert item.input is not None
            assert item.input.here()[:, 0, 0, 0, 0].tolist() == [2 * number, 2 * number + 1]
        assert isinstance(feed.next(30), PhaseEnd)
        assert feed.next(0.01) is None


def test_no_more_than_two_batches_are_ahead() -> None:
    source = Source(100)
    with feeding(source) as feed:
        until(lambda: source.given == 2)  # one waits, one was gathered and waits for its place
        assert feed.queued == 3 + 2
        assert source.given == 2
        feed.next(30)
        until(lambda: source.given == 3)


def test_what_stops_it_is_raised_after_what_was_ready() -> None:
    with feeding(Source(1, ValueError("no such clip"))) as feed:
        assert isinstance(feed.next(30), Batch)
        assert isinstance(feed.next(30), PhaseEnd)
        with pytest.raises(ValueError, match="no such clip"):
            feed.next(30)


def test_a_batch_that_finds_no_room_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(frames: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("essp_engine.loading.device_feed.transfer_to", lambda device: full)
    with feeding(Source(1)) as feed, pytest.raises(OutOfMemory, match="batch of 2 clips; set micro_batch"):
        feed.next(30)


def test_a_batch_stays_as_it_is_until_the_model_has_it() -> None:
    frames = [np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)] * 2
    there = ToHost()(frames)
    assert there.shape == (1, 3, True)
    assert there.here().dtype == torch.uint8, "a quarter of the bytes of floats; normalised where the model is"
    assert torch.equal(there.here()[1], torch.from_numpy(frames[1]))


def test_clips_in_the_colours_of_their_videos_become_pictures_on_the_device() -> None:
    planes = np.random.default_rng(0).integers(0, 256, (2, 1, 6, 4), dtype=np.uint8)
    luma = planes[:, :, :4, :, None]
    for frames, channels in ((planes, 3), (luma, 1)):
        source = Source(0)
        source.batches = [replace(batch(0), frames=tuple(frames), colours=(Colour(), Colour("bt709", full=True)))]
        with feeding(source) as feed:
            item = feed.next(30)
            assert isinstance(item, Batch)
            assert item.input is not None
            assert item.input.shape == (1, channels, True)
            made = item.input.here()
            assert made.shape == (2, 1, 4, 4, channels)
            for clip, own, wanted in zip(made, item.colours, frames, strict=True):
                assert np.array_equal(clip.numpy(), pictures(wanted, own))


def test_views_are_cut_out_of_the_pictures_that_the_device_has_made() -> None:
    planes = np.random.default_rng(0).integers(0, 256, (2, 3, 24, 20), dtype=np.uint8)
    luma = planes[:, :, :16, :, None]
    augment = AugmentSpec(crop=8)
    for frames in (planes, luma):
        colours = (Colour(), Colour("bt709", full=True))
        source = Source(0)
        cuts = tuple((training_cut(16, 20, augment, 0, 0, index),) for index in range(2))
        source.batches = [replace(batch(0), frames=tuple(frames), colours=colours, cuts=cuts)]
        with feeding(source, DeviceViews(8, COLOURS)) as feed:
            item = feed.next(30)
            assert isinstance(item, Batch)
            assert item.input is not None
            for index, made in enumerate(item.input.here().numpy()):
                seen = training_view(pictures(frames[index], colours[index]), augment, COLOURS, 0, 0, index)
                assert np.abs(made.astype(int) - seen.astype(int)).max() <= 1


def test_views_that_nobody_cuts_are_an_error() -> None:
    source = Source(0)
    source.batches = [replace(batch(0), cuts=((Cut(slice(0, 2), slice(0, 2)),),) * 2)]
    with feeding(source) as feed, pytest.raises(ValueError, match="the feed has no DeviceViews"):
        feed.next(30)


class Stream:
    """Records the calls."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def record_event(self) -> str:
        self.log.append(f"{self.name} records")
        return "arrival"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


def test_a_gpu_copies_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    empty, to = torch.empty, torch.Tensor.to

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        log.append(f"on {stream.name}")
        yield
        log.append(f"off {stream.name}")

    def allocate(*shape: Any, pin_memory: bool, **options: Any) -> torch.Tensor:
        assert pin_memory
        return empty(*shape, **options)

    def copy(self: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert non_blocking
        log.append(f"copy to {device}")
        return self.clone()

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(log, "side"))
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(log, "main"))
    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, s: log.append(f"kept for {s.name}"))
    frames = [np.full((2, 4, 4, 3), i, np.uint8) for i in range(3)]
    for clip in frames:
        clip.flags.writeable = False  # as a clip that lies in the cache
    sent = ToGpu(torch.device("cuda", 1))(frames)
    assert log == ["on side", "copy to cuda:1", "side records", "off side"]
    assert torch.equal(sent.here(), torch.from_numpy(np.stack(frames)))
    assert log[4:] == ["main waits for arrival", "kept for main"]
    assert sent.shape.channels == 3
    assert to is not torch.Tensor.to


@pytest.mark.parametrize(("native", "half"), [(True, torch.bfloat16), (False, torch.float16)])
def test_half_precision_is_what_the_gpu_computes_in(
    monkeypatch: pytest.MonkeyPatch, native: bool, half: torch.dtype
) -> None:
    """Emulated bfloat16, on a T4 or V100, would be slower than float32."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or native)
    assert half_type(True, torch.device("cuda")) is half
    assert half_type(False, torch.device("cuda")) is None
    assert half_type(True, CPU) is None


@pytest.mark.parametrize("deterministic", [True, False])
def test_each_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    taken: list[int] = []
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(cudnn, "benchmark", cudnn.benchmark)
    monkeypatch.setattr(cudnn, "deterministic", cudnn.deterministic)
    assert choose_device("auto", 1, deterministic) == torch.device("cuda", 1)
    assert taken == [1]
    assert (cudnn.benchmark, cudnn.deterministic) == (not deterministic, deterministic)
    with refused("device", "range"):
        choose_device("cuda", 2, deterministic)
    assert choose_device("cpu", 5, deterministic) == CPU

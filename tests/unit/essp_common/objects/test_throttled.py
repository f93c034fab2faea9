"""The account of a simulated device, in times that are passed in, and a store over it with a clock that it turns."""

from __future__ import annotations

import heapq
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.throttled import PIECE_BYTES, PRESETS, Device, Throttle, ThrottledStore, parse_throttle

throttles = st.builds(Throttle, st.floats(1e5, 1e9), st.floats(0, 0.1), st.one_of(st.integers(1, 8), st.just(4096)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("133MB/s,8ms", Throttle(133e6, 0.008)),
        ("1GiB/s", Throttle(2.0**30)),
        ("10 MB/s, 250us, parallel=3", Throttle(10e6, 250e-6, 3)),
        ("2MB/s,parallel=1,1.5s", Throttle(2e6, 1.5, 1)),
        ("HDD", PRESETS["hdd"]),
    ],
)
def test_a_throttle_is_read_as_it_is_written(text: str, expected: Throttle) -> None:
    assert parse_throttle(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "8ms", "133", "133MB", "MB/s", "0B/s", "-1MB/s", "5MB/s,fast", "5MB/s,parallel=0", "5MB/s,parallel=x",
     "5MB/s,61s", "floppy", "5MB/s,,8ms", "nan/s", "5MB/s,parallel=9999"],
)  # fmt: skip
def test_what_is_no_throttle_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="133MB/s,8ms"):
        parse_throttle(text)


@given(throttles)
def test_a_throttle_is_written_as_it_is_read(throttle: Throttle) -> None:
    again = parse_throttle(str(throttle))
    assert again.parallel == throttle.parallel
    assert again.bytes_per_s == pytest.approx(throttle.bytes_per_s, abs=2)
    assert again.latency_s == pytest.approx(throttle.latency_s, abs=1e-9)


def simulated(throttle: Throttle, threads: list[list[int]]) -> tuple[list[list[float]], float]:
    """When each thread's requests of these sizes end, one after the other, and when the last one ends."""
    device = Device(throttle)
    ends: list[list[float]] = [[] for _ in threads]
    # Time, thread, request, bytes done.
    events = [(0.0, thread, 0, -1) for thread, sizes in enumerate(threads) if sizes]
    heapq.heapify(events)
    while events:
        now_s, thread, request, done = heapq.heappop(events)
        size = threads[thread][request]
        if done < 0:
            heapq.heappush(events, (device.begin(now_s, size), thread, request, 0))
        elif done < size:
            piece = min(PIECE_BYTES, size - done)
            heapq.heappush(events, (device.move(now_s, piece), thread, request, done + piece))
        else:
            ends[thread].append(now_s)
            if request + 1 < len(threads[thread]):
                heapq.heappush(events, (now_s, thread, request + 1, -1))
    return ends, max((each[-1] for each in ends if each), default=0.0)


@given(throttles, st.lists(st.integers(0, 3 * PIECE_BYTES), min_size=1, max_size=12))
def test_one_thread_takes_latency_and_transfer_of_each_request(throttle: Throttle, sizes: list[int]) -> None:
    _, took_s = simulated(throttle, [sizes])
    expected_s = len(sizes) * throttle.latency_s + sum(sizes) / throttle.bytes_per_s
    assert took_s == pytest.approx(expected_s, rel=1e-9, abs=1e-12)


@given(throttles, st.lists(st.lists(st.integers(0, 2 * PIECE_BYTES), min_size=1, max_size=6), min_size=1, max_size=10))
def test_no_number_of_threads_is_faster_than_the_device(throttle: Throttle, threads: list[list[int]]) -> None:
    _, took_s = simulated(throttle, threads)
    sizes = [size for sizes in threads for size in sizes]
    slack = 1 + 1e-9
    assert took_s * slack >= sum(sizes) / throttle.bytes_per_s
    alone_s = sum(throttle.latency_s + size / throttle.bytes_per_s for size in sizes)
    assert took_s * slack >= alone_s / throttle.parallel
    assert took_s <= alone_s * slack + 1e-12


@given(st.integers(1, 16), st.integers(1, 8))
def test_threads_share_latency_up_to_what_is_served_at_a_time(threads: int, parallel: int) -> None:
    throttle = Throttle(1e12, 0.01, parallel)
    _, took_s = simulated(throttle, [[1] * 8] * threads)
    turns = -(-threads * 8 // min(threads, parallel))
    assert turns - 0.01 <= took_s / 0.01 <= turns + 1.01  # the last turn may be of fewer threads than are served


@given(st.integers(1, 6), st.integers(2, 40))
def test_a_small_request_waits_for_one_piece_of_each_large_one(large: int, pieces: int) -> None:
    throttle = Throttle(1e6, 0.001)
    ends, _ = simulated(throttle, [*[[pieces * PIECE_BYTES]] * large, [10]])
    most_s = 0.001 + (large * PIECE_BYTES + 10) / 1e6
    assert ends[-1][0] <= most_s * (1 + 1e-9)


def test_equal_threads_end_together() -> None:
    ends, took_s = simulated(Throttle(1e6, 0.002), [[4 * PIECE_BYTES] * 3] * 4)
    assert all(each[-1] >= took_s - 4 * PIECE_BYTES / 1e6 for each in ends)


class Clock:
    """Time that passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


def test_each_request_of_a_store_takes_its_time(tmp_path: Path) -> None:
    clock = Clock()
    device = Device(Throttle(1e6, 0.5))
    store = ThrottledStore(DirectoryStore(str(tmp_path)), device, clock, clock.sleep)
    (tmp_path / "source").write_bytes(bytes(250_000))
    took_s = []
    for request in (
        lambda: store.put("a/b", bytes(500_000)),
        lambda: store.put_file("a/c", str(tmp_path / "source")),
        lambda: store.get("a/b"),
        lambda: store.get("a/b", 400_000, 999_999),
        lambda: store.head("a/b"),
        lambda: list(store.list("a")),
        lambda: store.below("a").get("b"),
        lambda: store.delete("a/c"),
        lambda: store.local_path("a/b"),
    ):
        begin_s = clock.now_s
        request()
        took_s.append(clock.now_s - begin_s)
    assert took_s == pytest.approx([1.0, 0.75, 1.0, 0.6, 0.5, 0.5, 1.0, 0.5, 0.0])


def test_a_file_that_is_opened_is_read_by_requests(tmp_path: Path) -> None:
    clock = Clock()
    store = ThrottledStore(DirectoryStore(str(tmp_path)), Device(Throttle(1e12, 1.0)), clock, clock.sleep)
    (tmp_path / "v").write_bytes(bytes(100_000))
    with store.open("v") as file:
        assert clock.now_s == pytest.approx(101.0)
        file.read(10)
        file.read(10)
        assert clock.now_s == pytest.approx(102.0)
        assert file.read() == bytes(99_980)


def test_the_time_of_the_store_beneath_counts(tmp_path: Path) -> None:
    clock = Clock()

    class Slow(DirectoryStore):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            clock.now_s += 3.0
            return super().get(key, start, length)

    (tmp_path / "a").write_bytes(b"x")
    for latency_s, expected_s in ((1.0, 3.0), (5.0, 5.0)):
        begin_s = clock.now_s
        ThrottledStore(Slow(str(tmp_path)), Device(Throttle(1e9, latency_s)), clock, clock.sleep).get("a")
        assert clock.now_s - begin_s == pytest.approx(expected_s)

"""A build that has decoders read files: each file gets one outcome, whatever decoders answer, or do not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from essp.catalog import pool
from essp.catalog.pool import PoolProber
from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.errors import Unavailable
from essp_common.messages.parsing import parsed
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Probe
from essp_common.wiring import Adapters, Stores
from essp_engine.decoding.probe_answers import Answer
from essp_engine.decoding.probing import Outcome, ProbeOptions

OPTIONS = ProbeOptions(quick=True, sums=True)
FILES = [f"file:///videos/{number}.mp4" for number in range(50)]


class Decoders:
    """Plays all decoders, whenever the build waits."""

    def __init__(self, folder: Path, answer: Callable[[Probe], Answer | None]) -> None:
        bus = MemoryBus()
        bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
        self.adapters = Adapters(bus, MemoryCache(2**20), Stores([f"file://{folder}"]))
        self._seeds = bus.subscribe([topics.SEEDS], "decoder")
        self._answer = answer
        self.now_s = 0.0
        self.asked: list[Probe] = []

    def close(self) -> None:
        self._seeds.close()
        self.adapters.close()

    def work(self, wait_s: float) -> None:
        """Time passes, and what was asked for is answered."""
        self.now_s += wait_s
        for record in self._seeds.poll(1000, 0.0):
            probe = parsed(DecodeSeed, record).probe
            self.asked.append(probe)
            if (answer := self._answer(probe)) is not None:
                self.adapters.cache.put(probe.key, answer.packed(), [probe.consumer], 60)

    def read(self, files: list[str], options: ProbeOptions = OPTIONS) -> list[Outcome]:
        with PoolProber(self.adapters, options, clock=lambda: self.now_s, sleep=self.work) as prober:
            return list(prober.read(files))


@pytest.fixture
def decoders(tmp_path: Path) -> Iterator[Callable[[Callable[[Probe], Answer | None]], Decoders]]:
    made: list[Decoders] = []

    def make(answer: Callable[[Probe], Answer | None]) -> Decoders:
        made.append(Decoders(tmp_path, answer))
        return made[-1]

    yield make
    for each in made:
        each.close()


Make = Callable[[Callable[[Probe], Answer | None]], Decoders]


def facts(probe: Probe) -> Answer:
    return Answer([Outcome(uri, {"frame_count": len(uri), "sums": b"\xff\0"}) for uri in probe.uris])


def outcomes(found: list[Outcome]) -> dict[str, str | None]:
    assert len(found) == len({outcome.uri for outcome in found})
    return {outcome.uri: outcome.error for outcome in found}


def test_each_file_is_asked_for_once_and_its_answer_freed(decoders: Make) -> None:
    pool_of = decoders(facts)
    found = pool_of.read(FILES)
    assert {outcome.uri: outcome.facts for outcome in found} == {
        uri: {"frame_count": len(uri), "sums": b"\xff\0"} for uri in FILES
    }
    assert sorted(uri for probe in pool_of.asked for uri in probe.uris) == sorted(FILES)
    assert all(probe.quick for probe in pool_of.asked)
    assert not pool_of.adapters.cache.usage().keys


def test_an_answer_without_some_files_has_them_asked_for_again(decoders: Make) -> None:
    assert outcomes(decoders(lambda probe: Answer(facts(probe).outcomes[:5])).read(FILES)) == dict.fromkeys(FILES)


def test_a_message_that_kills_its_decoders_costs_the_file_that_does_it(decoders: Make) -> None:
    def deadly(probe: Probe) -> Answer:
        return Answer(rejected="crashed: 3 workers") if FILES[7] in probe.uris else facts(probe)

    assert outcomes(decoders(deadly).read(FILES)) == {**dict.fromkeys(FILES), FILES[7]: "crashed: 3 workers"}


def test_a_lost_answer_is_asked_for_again(decoders: Make) -> None:
    lost: list[str] = []

    def forgetful(probe: Probe) -> Answer | None:
        if probe.key not in lost:
            lost.append(probe.key)
            return None
        return facts(probe)

    pool_of = decoders(forgetful)
    assert outcomes(pool_of.read(FILES)) == dict.fromkeys(FILES)
    assert pool_of.now_s >= pool._AGAIN_S


def test_what_waits_for_its_turn_is_not_asked_for_again(decoders: Make) -> None:
    """Decoders would read each file several times, and the build would take them for silent while they do."""
    waiting: deque[Probe] = deque()
    pool_of = decoders(waiting.append)

    def a_minute_a_file(_: float) -> None:
        pool_of.work(60)
        if waiting:
            probe = waiting.popleft()
            pool_of.adapters.cache.put(probe.key, facts(probe).packed(), [probe.consumer], 60)

    files = [f"file:///videos/{number}.mp4" for number in range(200)]
    with PoolProber(pool_of.adapters, ProbeOptions(), clock=lambda: pool_of.now_s, sleep=a_minute_a_file) as prober:
        assert outcomes(list(prober.read(files))) == dict.fromkeys(files)
    assert len(pool_of.asked) == len(files)


def test_a_store_that_no_decoder_can_read_ends_the_build(decoders: Make) -> None:
    with pytest.raises(Unavailable, match="no configured store"):
        decoders(lambda _: Answer(unavailable="it is in no configured store")).read(FILES)


@pytest.mark.parametrize("timeout_s", [120.0, 240.0])
def test_silence_ends_the_build_but_no_file_that_may_take_long(decoders: Make, timeout_s: float) -> None:
    pool_of = decoders(lambda _: None)
    with pytest.raises(Unavailable, match="essp decoder"):
        pool_of.read(FILES, replace(OPTIONS, timeout_s=timeout_s))
    assert pool_of.now_s > 12.5 * timeout_s


def test_a_file_that_only_decoders_miss_is_not_taken_for_missing(decoders: Make, tmp_path: Path) -> None:
    here = tmp_path / "a.mp4"
    here.write_bytes(b"x")
    gone = f"file://{tmp_path}/gone.mp4"

    def blind(probe: Probe) -> Answer:
        return Answer([Outcome(uri, {}, "vanished: it is not there") for uri in probe.uris])

    with closing(decoders(blind)) as pool_of:
        assert outcomes(pool_of.read([gone])) == {gone: "vanished: it is not there"}
        with pytest.raises(Unavailable, match="does not find"):
            pool_of.read([f"file://{here}"])

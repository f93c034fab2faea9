"""A decoder that reads files for a catalog: what it answers is what the build would have found by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.errors import CacheFull, PermanentError, Unavailable
from essp_common.pb.v1.messages_pb2 import Probe
from essp_decoder import probes as probes_module
from essp_decoder.probes import Probes
from essp_engine.decoding.probe_answers import Answer, request
from essp_engine.decoding.probing import ProbeOptions, Prober
from essp_engine.video.synthetic import Encoding, numbered, write_video

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("started_children")]

RECORD = Record(topics.SEEDS, 0, 0, b"", b"")
OPTIONS = ProbeOptions(sums=True)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    write_video(tmp_path / "a.mp4", numbered(12, 32, 32), Encoding(gop=5, intervals=(1, 1, 3)))
    (tmp_path / "b.mp4").write_text("no video", encoding="ascii")
    return [f"file://{tmp_path}/{name}" for name in ("a.mp4", "b.mp4", "c.mp4")]


@pytest.fixture
def cache() -> MemoryCache:
    return MemoryCache(2**20)


@pytest.fixture
def probes(cache: MemoryCache, tmp_path: Path) -> Iterator[Probes]:
    with closing(Probes(cache, [f"file://{tmp_path}"], "w1")) as made:
        yield made


def asked(files: list[str], options: ProbeOptions = OPTIONS) -> Probe:
    return request("catalog-1", "essp:catalog-1:{1}", "build", files, options).probe


def answer(cache: MemoryCache) -> Answer:
    return Answer.unpacked(bytes(cache.get("essp:catalog-1:{1}")))


@pytest.mark.parametrize("quick", [False, True])
def test_files_have_the_outcomes_that_a_build_finds(
    probes: Probes, cache: MemoryCache, files: list[str], tmp_path: Path, quick: bool
) -> None:
    options = ProbeOptions(sums=True, quick=quick)
    probes.handle(RECORD, asked(files, options))
    with Prober([f"file://{tmp_path}"], options) as prober:
        alone = list(prober.read(files))
    assert answer(cache).outcomes == alone
    assert [(outcome.error or "").partition(":")[0] for outcome in alone] == ["", "not_video", "vanished"]
    assert bool(alone[0].facts["unproven"]) == quick


def test_files_of_a_store_that_the_decoder_does_not_have_are_not_missing(
    probes: Probes, cache: MemoryCache, files: list[str]
) -> None:
    probes.handle(RECORD, asked([*files, "s3://elsewhere/a.mp4"]))
    assert "ESSP_STORES" in answer(cache).unavailable
    assert not answer(cache).outcomes


def test_after_its_time_a_message_is_answered_in_part(
    probes: Probes, cache: MemoryCache, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes_module, "_MESSAGE_S", 0.0)
    probes.handle(RECORD, asked(files))
    assert [outcome.uri for outcome in answer(cache).outcomes] == files[:1]


def test_without_room_in_the_cache_the_files_are_not_read_again(
    probes: Probes, cache: MemoryCache, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise CacheFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "put", full)
        with pytest.raises(CacheFull):
            probes.handle(RECORD, asked(files))
    monkeypatch.setattr(Prober, "read", None)
    probes.handle(RECORD, asked(files))
    assert len(answer(cache).outcomes) == len(files)


def test_a_rejected_message_is_answered_with_the_reason(probes: Probes, cache: MemoryCache, files: list[str]) -> None:
    probes.reject(asked(files), PermanentError("3 workers died"))
    assert answer(cache).rejected.endswith("3 workers died")
    probes.reject(asked(files), Unavailable("the store is away"))
    assert answer(cache).unavailable == "the store is away"

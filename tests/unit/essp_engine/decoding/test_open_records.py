"""Records through the sandbox: the pixels that were written, or why not, record by record."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from essp_common.errors import BadVideo, EsspError
from essp_common.objects.ranged import RangedFile
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.records.rows import open_data
from essp_common.wiring import Stores
from essp_engine.decoding import sandbox as sandbox_module
from essp_engine.decoding.block_cache import BlockCache
from essp_engine.decoding.open_records import OpenRecords
from essp_engine.decoding.sandbox import Outcome, Sandbox
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.planning.phases import Phases
from essp_engine.seeding.instructions import IssueUnits
from essp_engine.seeding.message_builder import MessageBuilder
from essp_engine.video import codec
from essp_engine.video.container import Limits
from tests.harness.record_sets import image, make_records, png, raw, records_job

pytestmark = pytest.mark.processes
LABELS = [0, 1] * 6
WHOLE = {"clip": {"resize": {"mode": "exact", "height": 24, "width": 28}}, "data": {}}


@pytest.fixture(scope="module")
def stores() -> Stores:
    return Stores(("file:///",))


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with closing(Sandbox(DecodingSettings(stores=("file:///",)).sandbox())) as sandbox:
        yield sandbox


def units(folder: Path, stores: Stores) -> list[DecodeSeed]:
    """The messages of the first training phase, as the master writes them."""
    change = WHOLE | {"data": {"records": folder.as_uri()}}
    spec = records_job(folder, folder / "out", change)
    phases = Phases(spec, open_data(spec, stores))
    builder = MessageBuilder(spec, phases, 1)
    plan = phases.plan(0)
    made = builder.units(IssueUnits(0, [tuple(unit) for unit in plan.units(0, len(plan))], ("trainer.net",)))
    return [DecodeSeed.FromString(message) for _, message in made]


def decoded(sandbox: Sandbox, asked: list[DecodeSeed]) -> dict[int, Outcome]:
    """Number of a record -> what came of it."""
    return {
        int(seed.record.id.rpartition("/")[2]): outcome
        for unit in asked
        for seed, outcome in zip(unit.seeds, sandbox.decode(unit), strict=True)
    }


def check(number: int, outcome: Outcome) -> None:
    assert not isinstance(outcome, EsspError), outcome
    np.testing.assert_array_equal(codec.decode(outcome), image(number, number % 2)[None])


@pytest.mark.parametrize("make", [raw, png])
def test_each_record_gives_its_image(sandbox: Sandbox, stores: Stores, tmp_path: Path, make: object) -> None:
    make_records(tmp_path, LABELS, make, file_bytes=8000)  # type: ignore[arg-type]
    asked = units(tmp_path, stores)
    found = decoded(sandbox, asked)
    assert len(found) == 10, "the others are for validation"
    for number, outcome in found.items():
        check(number, outcome)
    assert {unit.video.uri.rpartition("/")[0] for unit in asked} == {f"file://{tmp_path}/records"}
    assert max(len(unit.seeds) for unit in asked) > 1


def test_damage_costs_the_record_that_it_hit(sandbox: Sandbox, stores: Stores, tmp_path: Path) -> None:
    made = make_records(tmp_path, LABELS, raw)
    asked = units(tmp_path, stores)
    path = tmp_path / made.version()[1].files[0].key
    seeds = sorted((seed for unit in asked for seed in unit.seeds), key=lambda seed: seed.record.offset)
    first, last = seeds[0], seeds[-1]
    data = bytearray(path.read_bytes())
    data[first.record.offset + 30] ^= 1
    path.write_bytes(data[: last.record.offset + 5])
    found = decoded(sandbox, asked)
    bad = {number: outcome for number, outcome in found.items() if isinstance(outcome, BadVideo)}
    assert {number: outcome.kind for number, outcome in bad.items()} == {
        int(first.record.id[-3:]): "damaged",
        int(last.record.id[-3:]): "truncated",
    }
    for number in found.keys() - bad.keys():
        check(number, found[number])


def test_an_unexpected_error_costs_the_record_that_it_hit(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is the reason. The process is replaced once, and not for each record."""
    make_records(tmp_path, LABELS, png)
    whole, *_ = units(tmp_path, stores)
    nowhere = DecodeSeed()
    nowhere.CopyFrom(whole)
    for seed in whole.seeds[2:5:2]:
        seed.record.offset = 2**63
    for seed in nowhere.seeds:
        seed.record.offset = 2**63
    started = 0

    class Counted(sandbox_module._Child):
        def __init__(self, memory_fd: int, videos: BlockCache | None) -> None:
            nonlocal started
            started += 1
            super().__init__(memory_fd, videos)

    monkeypatch.setattr(sandbox_module, "_Child", Counted)
    with closing(Sandbox(DecodingSettings(stores=("file:///",)).sandbox())) as sandbox:
        outcomes = sandbox.decode(whole)
        failed = {place for place, outcome in enumerate(outcomes) if isinstance(outcome, EsspError)}
        assert failed == {2, 4}
        assert "the decoder failed: ValueError: cannot fit 'int' into an offset-sized integer" in str(outcomes[2])
        assert started == 2
        assert {getattr(outcome, "kind", "clip") for outcome in sandbox.decode(nowhere)} == {"crashed"}
    assert started == 3
    assert caplog.text.count("Traceback (most recent call last)") == 1


def test_a_record_that_needs_too_much_memory_costs_no_other(stores: Stores, tmp_path: Path) -> None:
    made = make_records(tmp_path, LABELS, png)
    asked = units(tmp_path, stores)
    os.truncate(tmp_path / made.version()[1].files[0].key, 2**32)  # a hole, which takes no room
    asked[0].seeds[3].record.length = 2**32 - 1
    options = DecodingSettings(stores=("file:///",)).sandbox()
    options = replace(options, config=replace(options.config, address_bytes=2**30))
    with closing(Sandbox(options)) as sandbox:
        outcomes = sandbox.decode(asked[0])
    kinds = [getattr(outcome, "kind", "clip") for outcome in outcomes]
    assert kinds == ["limit" if place == 3 else "clip" for place in range(len(kinds))]
    assert str(outcomes[3]) == "the decoder needs more memory than a child may have"


def test_a_file_that_is_gone_costs_its_records(sandbox: Sandbox, stores: Stores, tmp_path: Path) -> None:
    made = make_records(tmp_path, LABELS, raw, file_bytes=8000)
    asked = units(tmp_path, stores)
    (tmp_path / made.version()[1].files[1].key).unlink()
    found = decoded(sandbox, asked)
    bad = {number: outcome.kind for number, outcome in found.items() if isinstance(outcome, BadVideo)}
    assert bad == {number: "vanished" for number in found if 3 <= number < 6}


class RangedStore:
    """A store elsewhere: what is asked of it is noted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.requests: list[tuple[int, int]] = []

    def resolve(self, uri: str) -> tuple[RangedStore, str]:
        return self, uri

    def local_path(self, key: str) -> None:
        return None

    def open(self, key: str) -> io.BufferedReader:
        return io.BufferedReader(RangedFile(self._path.stat().st_size, self._fetch))

    def _fetch(self, start: int, length: int) -> bytes:
        self.requests.append((start, length))
        return self._path.read_bytes()[start : start + length]


def test_records_that_lie_close_together_come_with_one_request(stores: Stores, tmp_path: Path) -> None:
    """12 records of 2 KB each, in two units: the second one finds its bytes read."""
    made = make_records(tmp_path, LABELS, raw)
    ranged = RangedStore(tmp_path / made.version()[1].files[0].key)
    records = OpenRecords(ranged, Limits(), 4)  # type: ignore[arg-type]
    for unit in units(tmp_path, stores):
        targets = [np.zeros((1, 24, 28, 3), np.uint8) for _ in unit.seeds]
        assert records.read(unit.video, unit.seeds, unit.recipe.resize, targets) == [None] * len(targets)
        for seed, target in zip(unit.seeds, targets, strict=True):
            number = int(seed.record.id.rpartition("/")[2])
            np.testing.assert_array_equal(target[0], image(number, number % 2))
    assert len(ranged.requests) == 1
    for opened in {unit.video.uri: unit.video for unit in units(tmp_path, stores)}.values():
        records.drop(opened)

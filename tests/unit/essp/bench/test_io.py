"""The experiment: its configurations, their rows, what is left out, and interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from essp.bench.io import IoBenchmark, IoOptions, batches_of, configurations
from essp.bench.sources import Shape, open_source
from essp.bench.storages import Storage
from essp_common.errors import ConfigError
from essp_common.wiring import Stores
from tests.unit.essp.bench.conftest import DAMAGED

SMALL = IoOptions(("read", "full"), (1, 2), (0, 1), batch=3, batches=2, runs=3)


@pytest.fixture
def storage(root: Path) -> Storage:
    source = open_source(f"file://{root}/images", Stores(("file:///",)), Shape(16))
    files = tuple(path for place in source.objects() if (path := place.store.local_path(place.key)))
    return Storage("source", source, files, False)


def never() -> bool:
    return False


def test_configurations_are_every_combination_after_raw_reads(storage: Storage) -> None:
    found = [tuple(one.labels.values()) for one in configurations([storage, replace(storage, name="b")], SMALL)]
    pipelines = [("raw", "")] + [(kind, prefetch) for kind in ("read", "full") for prefetch in (0, 1)]
    assert found == [(name, *one, threads) for name in ("source", "b") for one in pipelines for threads in (1, 2)]


def test_a_benchmark_has_a_row_of_each_configuration(storage: Storage) -> None:
    benchmark = IoBenchmark([storage], replace(SMALL, cold=True), {"source": "images"})
    told: list[tuple[int, int, int]] = []
    benchmark.run(never, lambda *now: told.append(now))
    results = benchmark.results()
    assert (len(results.rows), results.partial) == (10, False)
    assert [now[:2] for now in told if now[2] == 0] == [(run, number) for run in range(3) for number in range(10)]
    assert (2, 9, 2) in told
    for row in results.rows:
        assert row.values["samples_per_s"].median > 0
        assert len(row.values["seconds"].values) == 2
        assert ("of_raw" in row.values) == (row.labels["pipeline"] != "raw")
        assert row.values["speedup"].median == 1 or row.labels["threads"] == 2
    assert results.facts["damaged"] == len(benchmark.damaged) <= 1
    assert [sentence.partition(":")[0] for sentence in results.sentences] == [
        f"source, {kind}, prefetch {prefetch}" for kind in ("read", "full") for prefetch in (0, 1)
    ]


def test_damaged_images_are_skipped_and_counted_once(storage: Storage) -> None:
    benchmark = IoBenchmark([storage], replace(SMALL, kinds=("full",), batches=8), {})
    benchmark.run(never, lambda *now: None)
    assert list(benchmark.damaged) == [DAMAGED]
    results = benchmark.results()
    assert results.facts["damaged"] == 1
    assert {row.values["damaged"].low for row in results.rows if row.labels["pipeline"] == "full"} == {2.0}


@pytest.mark.parametrize(("until", "rows", "sentences"), [(0, 0, 0), (3, 3, 1), (11, 10, 4)])
def test_what_was_measured_before_an_interruption_is_there(
    storage: Storage, until: int, rows: int, sentences: int
) -> None:
    benchmark = IoBenchmark([storage], SMALL, {})
    begun: list[int] = []

    def tell(run: int, number: int, made: int) -> None:
        if not made:
            begun.append(number)

    benchmark.run(lambda: len(begun) > until, tell)
    results = benchmark.results()
    assert (len(results.rows), len(results.sentences), results.partial) == (rows, sentences, True)


@pytest.mark.parametrize(("samples", "expected"), [(64, 1), (191, 2), (10**6, 256)])
def test_a_run_is_an_epoch_and_no_more_than_256_batches(samples: int, expected: int) -> None:
    assert batches_of(IoOptions(), samples, "image") == expected
    assert batches_of(IoOptions(batches=7), samples, "image") == 7


def test_fewer_samples_than_a_batch_are_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match="12 images, fewer than a batch; give --batch 12, or --batches"):
        batches_of(IoOptions(), 12, "image")

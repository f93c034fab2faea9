"""Rules of pools outlive the master that was told, and what one master writes no other undoes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from essp_common.errors import ConfigError, NotFound, Unavailable
from essp_common.objects.port import ObjectStore
from essp_common.runtime.troubles import Kind
from essp_common.wiring import open_store
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.reconciler import PoolView, Reconciler
from essp_master.pools.rule_book import PoolRuleBook
from essp_master.pools.rules import PREFIX, PoolRule, PoolRules
from essp_master.pools.trainer_ranks import TrainerRanks
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S
from tests.unit.essp_master.pools.reconciler_bench import DEPTH, IMAGE, ReconcilerBench

FIXED = PoolRule(replicas=2)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


def bench_over(store: ObjectStore | None, **sizes: int) -> ReconcilerBench:
    return ReconcilerBench(PoolRules(store), **sizes)


def test_a_master_that_takes_over_keeps_the_rules_of_the_one_before(store: ObjectStore) -> None:
    first = bench_over(store, decoder=1)
    first.reconciler.set("decoder", FIXED, "ann")
    successor = bench_over(store, decoder=5)
    successor.pass_time(60, decoded_per_s=5.0, wait=0.5)
    assert [told[:3] for told in successor.driver.told] == [("scale", "decoder", 2)], (
        "set back at once, and not grown since"
    )
    assert successor.reconciler.pools()[0].rule == FIXED


def test_a_rule_that_is_forgotten_gives_way_to_the_bounds_of_the_chart(store: ObjectStore) -> None:
    bench = bench_over(store, decoder=1)
    bench.driver.bounds = (3, 9)
    bench.reconciler.set("decoder", FIXED, "ann")
    bench.reconciler.reset("decoder", "ann")
    assert bench.driver.replicas == {"decoder": 3}
    assert bench_over(store, decoder=1).reconciler.rule("decoder") == PoolRule()
    with pytest.raises(NotFound, match="was never changed"):
        bench.reconciler.reset("decoder", "ann")


def test_a_registration_takes_over_with_its_rule_and_loses_it_when_it_goes(store: ObjectStore) -> None:
    first = bench_over(store, decoder=1)
    first.rows = {"depth": DEPTH}
    first.reconciler.step()
    first.reconciler.set("extractor.depth", FIXED, "ann")
    successor = bench_over(store, decoder=1)
    successor.rows = {"depth": DEPTH}
    successor.reconciler.step()
    assert successor.reconciler.rule("extractor.depth") == FIXED, "not the bounds of its registration"
    successor.rows = {}
    successor.reconciler.step()
    assert PoolRules(store).of("extractor.depth") is None


def test_two_masters_do_not_undo_each_others_rules(store: ObjectStore) -> None:
    one, two = PoolRules(store), PoolRules(store)
    one.follow()
    two.set("extractor.flow", FIXED, "bob")
    one.set("decoder", FIXED, "ann")
    two.follow()
    assert [rules.of(pool) for rules in (one, two) for pool in ("decoder", "extractor.flow")] == [FIXED] * 4


def test_nothing_is_scaled_before_the_rules_are_known(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    PoolRules(store).set("decoder", FIXED, "ann")
    successor = bench_over(store, decoder=5)

    def away(key: str) -> bytes:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(store, "get", away)
        with pytest.raises(Unavailable):
            successor.reconciler.step()
        with pytest.raises(Unavailable):
            successor.reconciler.rule("decoder")
    successor.reconciler.step()
    assert successor.driver.told == [("scale", "decoder", 2)]


def test_a_store_that_does_not_answer_keeps_nobody_from_pools(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are scaled by the rules that are known, and people are told of them while the store is waited for."""
    PoolRules(store).set("decoder", FIXED, "ann")
    bench = bench_over(store, decoder=2)
    bench.reconciler.step()
    asked: list[str] = []
    told: list[PoolView] = []

    def away(key: str) -> bytes:
        asked.append(key)
        told.extend(asked_meanwhile(bench))
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(store, "get", away)
    bench.driver.replicas["decoder"] = 7
    bench.clock.now_s += 10
    bench.reconciler.step()
    assert [(pool.name, pool.rule) for pool in told] == [("decoder", FIXED)]
    assert bench.driver.replicas == {"decoder": FIXED.replicas}
    bench.clock.now_s += 10
    bench.reconciler.step()
    assert len(asked) == 1, "not at each step"
    bench.clock.now_s += 60
    bench.reconciler.step()
    assert len(asked) == 2


def asked_meanwhile(bench: ReconcilerBench) -> list[PoolView]:
    """What somebody is told of pools at this moment; nothing if he is kept waiting."""
    told: list[PoolView] = []
    asks = threading.Thread(target=lambda: told.extend(bench.reconciler.pools()), daemon=True)
    asks.start()
    asks.join(LONGEST_S)
    return told


def test_who_sets_a_pool_keeps_nobody_else_waiting_for_the_store(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_over(store, decoder=2)
    bench.reconciler.step()
    told = []

    def away(key: str, data: bytes, if_absent: bool = False) -> None:
        told.append(asked_meanwhile(bench))
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(store, "put", away)
    with pytest.raises(Unavailable):
        bench.reconciler.set("decoder", FIXED, "ann")
    assert [[pool.name for pool in pools] for pools in told] == [["decoder"]]
    assert bench.reconciler.rule("decoder") == PoolRule(), "it counts once it is written"
    assert bench.reconciler.events() == []


def test_a_platform_that_does_not_answer_keeps_nobody_from_what_is_known_of_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, told = bench_over(None, decoder=2), []

    def away(pool: str, replicas: int, spare: object) -> None:
        told.append(asked_meanwhile(bench))
        raise Unavailable("the API server does not answer")

    monkeypatch.setattr(bench.driver, "scale", away)
    with pytest.raises(Unavailable):
        bench.reconciler.set("decoder", PoolRule(replicas=3), "ann")
    assert [[pool.name for pool in pools] for pools in told] == [["decoder"]]


def test_pools_are_scaled_and_ranks_divided_while_the_store_of_registrations_does_not_answer() -> None:
    own = TrainerRow(name="own", image=IMAGE, models=("small",), max_ranks=1)
    answers = [True]

    def registered() -> dict[str, TrainerRow]:
        if not answers:
            raise Unavailable("the store does not answer")
        return {"own": own}

    bench = ReconcilerBench(decoder=1)
    bench.reconciler = Reconciler(
        bench.driver,
        bench.worker_registry,
        lambda: bench.jobs,
        PoolRuleBook(trainers=registered, clock=bench.clock),
        TrainerRanks(bench.driver, 6),
        clock=bench.clock,
    )
    bench.reconciler.step()
    answers.clear()
    bench.pass_time(60, decoded_per_s=5.0, wait=0.5)
    assert bench.driver.replicas["decoder"] > 1
    trained = {told for told in bench.driver.told if told[0] == "train"}
    assert trained == {("train", "demo", "flow", 1), ("train", "demo", "rgb", 1)}, "as the row that was read allows"


def test_bounds_that_no_size_lies_within_are_refused_and_change_nothing(store: ObjectStore) -> None:
    bench = bench_over(store, decoder=3)
    with refused("min", "conflict"):
        bench.reconciler.set("decoder", PoolRule(max=0), "ann")
    assert bench.reconciler.rule("decoder") == PoolRule()
    bench.reconciler.set("decoder", PoolRule(min=0, max=0), "ann")
    assert bench.driver.replicas == {"decoder": 0}


def test_such_bounds_of_an_earlier_master_are_read_and_the_pool_comes_to_rest(store: ObjectStore) -> None:
    PoolRules(store).set("decoder", PoolRule(min=2, max=9), "ann")
    document = f"{PREFIX}0000000001.json"
    store.put(document, store.get(document).replace(b'"max": 9', b'"max": 1'))
    bench = bench_over(store, decoder=5)
    bench.pass_time(120, decoded_per_s=5.0, wait=0.5)
    assert bench.reconciler.rule("decoder") == PoolRule(min=2, max=1)
    assert [told[:3] for told in bench.driver.told] == [("scale", "decoder", 1)]


def test_a_rule_that_cannot_be_kept_is_said_to_last_as_long_as_the_master() -> None:
    bench = bench_over(None, decoder=1)
    bench.reconciler.set("decoder", FIXED, "ann")
    assert bench.reconciler.rule("decoder") == FIXED
    assert any("ESSP_STATE would keep it" in event.message for event in bench.reconciler.events())


def test_what_cannot_be_read_is_named(store: ObjectStore) -> None:
    store.put(f"{PREFIX}0000000003.json", b"{}")
    with pytest.raises(ConfigError, match=r"pools/0000000003.json holds no rules of pools: .* or remove it"):
        PoolRules(store).follow()


@pytest.mark.parametrize("takes_over", [False, True])
def test_rules_that_cannot_be_read_are_told_of_and_those_before_them_hold(store: ObjectStore, takes_over: bool) -> None:
    """Pools are repaired and scaled meanwhile, and what cannot be read is not written over."""
    rules, half = PoolRules(store), f"{PREFIX}0000000002.json"
    rules.set("decoder", FIXED, "ann")
    rules.set("extractor.flow", FIXED, "ann")
    whole = store.get(half)
    store.delete(half)
    bench = bench_over(store, decoder=5, **{"extractor.flow": 1})
    if not takes_over:
        bench.reconciler.step()
    store.put(half, whole[: len(whole) // 2])
    bench.reconciler.step()
    bench.driver.replicas["decoder"] = 7
    bench.reconciler.repair()
    assert bench.driver.replicas == {"decoder": FIXED.replicas, "extractor.flow": 1}
    (((kind, subject), words),) = bench.book.troubles().items()
    assert (kind, subject) == (Kind.STATE_DAMAGED, "master")
    assert f"{half} holds no rules of pools" in words
    assert "remove it" in words
    with pytest.raises(ConfigError, match=r"0000000002.json .*remove it"):
        bench.reconciler.set("decoder", PoolRule(replicas=3), "ann")
    assert store.get(half) == whole[: len(whole) // 2]
    store.put(half, whole)
    bench.reconciler.step()
    assert bench.driver.replicas == {"decoder": 2, "extractor.flow": 2}
    assert not bench.book.troubles()


def test_a_damaged_document_that_another_has_replaced_is_of_no_matter(store: ObjectStore) -> None:
    rules = PoolRules(store)
    for replicas in (1, 2, 3):
        rules.set("decoder", PoolRule(replicas=replicas), "ann")
    reader = bench_over(store, decoder=1)
    newest = store.get(f"{PREFIX}0000000003.json")
    store.delete(f"{PREFIX}0000000003.json")
    store.put(f"{PREFIX}0000000002.json", b"")
    reader.reconciler.step()
    assert reader.driver.replicas == {"decoder": 1}
    store.put(f"{PREFIX}0000000003.json", newest)
    reader.reconciler.step()
    assert reader.driver.replicas == {"decoder": 3}
    assert not reader.book.troubles()


def test_registrations_that_cannot_be_read_remove_no_pool(store: ObjectStore) -> None:
    """Nor do they keep others from repairs."""
    bench = bench_over(store, decoder=1)
    bench.rows = {"depth": DEPTH}
    bench.reconciler.step()
    bench.reconciler.set("decoder", FIXED, "ann")

    def damaged() -> dict[str, ExtractorRow]:
        raise ConfigError("registry/0000000001.json: cannot be read; remove it")

    book = PoolRuleBook(PoolRules(store), damaged, clock=bench.clock)
    successor = Reconciler(bench.driver, bench.worker_registry, lambda: bench.jobs, book, clock=bench.clock)
    bench.driver.replicas["decoder"] = 7
    successor.step()
    assert bench.driver.replicas.keys() == {"decoder", "extractor.depth"}
    assert bench.driver.replicas["decoder"] == FIXED.replicas
    (words,) = book.troubles().values()
    assert "registry/0000000001.json" in words


def test_the_document_of_another_number_is_refused_and_the_one_before_it_counts_once_it_is_removed(
    store: ObjectStore,
) -> None:
    """As when somebody copies one over another: it must not be read for ever."""
    rules = PoolRules(store)
    rules.set("decoder", FIXED, "ann")
    rules.set("extractor.flow", FIXED, "ann")
    first, second, third = (f"{PREFIX}{number:010}.json" for number in (1, 2, 3))
    store.put(third, store.get(first))
    for reader in (rules, PoolRules(store)):
        with pytest.raises(ConfigError, match=r"0000000003.json holds change 1 of the rules of pools; .*remove it"):
            reader.follow()
    store.delete(third)
    store.put(first, b"damaged, and of no matter any more")
    successor = PoolRules(store)
    successor.set("decoder", None, "bob")
    assert successor.of("extractor.flow") == FIXED
    assert store.get(second) != store.get(third)


def test_a_pause_is_told_and_outlives_the_master(store: ObjectStore) -> None:
    bench = bench_over(store, decoder=2)
    assert bench.told == []
    bench.reconciler.step()
    assert bench.reconciler.pause("decoder", "ann").paused
    bench.reconciler.step()
    assert bench.reconciler.set("decoder", FIXED, "bob").paused
    assert bench.told == [set(), {"decoder"}], "whoever sets its size does not resume it"
    assert [kind for kind, _ in bench.book.troubles()] == [Kind.PAUSED]
    successor = bench_over(store, decoder=2)
    successor.reconciler.step()
    assert successor.told == [{"decoder"}]
    assert successor.reconciler.resume("decoder", "ann") == FIXED
    assert successor.told == [{"decoder"}, set()]
    assert not successor.book.troubles()


def test_a_pool_that_is_resumed_has_the_bounds_it_was_made_with(store: ObjectStore) -> None:
    bench = bench_over(store, decoder=2)
    bench.reconciler.pause("decoder", "ann")
    bench.reconciler.resume("decoder", "ann")
    assert PoolRules(store).of("decoder") is None
    with pytest.raises(NotFound):
        bench.reconciler.pause("encoder", "ann")
    with pytest.raises(ConfigError, match="essp job pause"):
        bench_over(store, **{"trainer.demo.rgb": 1}).reconciler.pause("trainer.demo.rgb", "ann")

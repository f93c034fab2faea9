"""Every invariant of a soak can fail, and the faults of a run follow from its seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise

import pytest

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    DeadLetter,
    DecodeSeed,
    Made,
    Progress,
    Seed,
    Trained,
)
from tests.soak.killer import WEIGHTS, faults
from tests.soak.verdict import Figures, Round, Traffic, traffic, violations


def good() -> Figures:
    done = Round("j", 10.0, "completed", "", {"rgb": "abc"}, clips=8, skipped=1, keys_left=0, audited=7, broken=[])
    return Figures(
        seed=1,
        rounds=[done],
        expected_weights={"rgb": "abc"},
        faults={"kill": Counter(decoder=1)},
        traffic=Traffic(trained_clips={"j": {"trainer.rgb": 7}}),
        budget_bytes=100,
        outstanding_bytes=100,
        redis_bytes=150,
    )


def test_a_run_in_which_everything_held_has_no_violations() -> None:
    assert violations(good()) == []


def slow(figures: Figures) -> None:
    figures.rounds[0].state, figures.rounds[0].reason = "running", "slow"


BREAKS: dict[str, Callable[[Figures], object]] = {
    "is running: slow": slow,
    "other weights": lambda f: f.rounds[0].weights.update(rgb="abd"),
    "trained 6 of 7": lambda f: f.traffic.trained_clips["j"].update({"trainer.rgb": 6}),
    "trained 8 of 7": lambda f: f.traffic.trained_clips["j"].update({"trainer.rgb": 8}),
    "nobody reported": lambda f: f.traffic.trained_clips.clear(),
    "could not be audited": lambda f: setattr(f.rounds[0], "audited", 0),
    "audit: one master: fence 2 after 3": lambda f: f.rounds[0].broken.append("one master: fence 2 after 3"),
    "3 keys were left": lambda f: setattr(f.rounds[0], "keys_left", 3),
    "no job was run": lambda f: f.rounds.clear(),
    "101 bytes were outstanding": lambda f: setattr(f, "outstanding_bytes", 101),
    "0 bytes were outstanding": lambda f: setattr(f, "outstanding_bytes", 0),
    "Redis held 201 bytes": lambda f: setattr(f, "redis_bytes", 201),
    "2 processes were left": lambda f: setattr(f, "processes_left", 2),
    "unasked: it died": lambda f: f.unasked.append("it died"),
    "1 records among the seeds": lambda f: f.traffic.refused.update({topics.SEEDS: 1}),
    "no fault was made": lambda f: f.faults.clear(),
}


@pytest.mark.parametrize("told", BREAKS)
def test_each_invariant_can_be_broken(told: str) -> None:
    figures = good()
    BREAKS[told](figures)
    assert len(violations(figures)) == 1
    assert told in violations(figures)[0]
    assert figures.document()["violations"] == violations(figures)


def test_traffic_tells_what_was_said_twice() -> None:
    unit = DecodeSeed(job="j", purpose=TRAIN, seeds=[Seed(index=1), Seed(index=2)])
    once = Progress(job="j", trained=Trained(job="j", purpose=TRAIN, consumer="trainer.rgb", indices=[1, 2]))
    again = Progress(job="j", trained=Trained(job="j", purpose=TRAIN, consumer="trainer.rgb", indices=[2]))
    decoded = Progress(job="j", made=Made(purpose=TRAIN, indices=[1]))
    extracted = Progress(job="j", made=Made(purpose=TRAIN, indices=[1, 2], stream="flow"))
    said = [decoded, extracted, once]
    sent = [(topics.SEEDS, unit), (topics.SEEDS, unit), (topics.DEADLETTER, DeadLetter(topic=topics.SEEDS))]
    sent += [(topics.PROGRESS, progress) for progress in (*said, said[0], again)]
    records = [Record(topic, 0, n, b"", message.SerializeToString()) for n, (topic, message) in enumerate(sent)]
    found = traffic([*records, Record(topics.SEEDS, 0, len(sent), b"", b"")])
    assert found.refused == {topics.SEEDS: 1}
    assert (found.seeds_published, found.seeds, found.dead_letters) == (4, 2, {topics.SEEDS: 1})
    assert (found.decoded, found.decoded_clips, found.extracted, found.extracted_clips) == (2, 1, 2, 2)
    assert (found.trained, found.trained_clips) == (3, {"j": {"trainer.rgb": 2}})
    assert found.duplicates == 2


def test_faults_follow_from_the_seed_and_hit_everybody() -> None:
    names = ["master", "decoder.0", "trainer.rgb"]
    victims = dict.fromkeys(WEIGHTS, names)
    first = list(islice(faults(7, 2.0, victims), 300))
    assert first == list(islice(faults(7, 2.0, victims), 300))
    assert first != list(islice(faults(8, 2.0, victims), 300))
    assert {fault.victim for fault in first} == set(names)
    assert {fault.kind for fault in first} == set(WEIGHTS)
    assert all((fault.record is None) or fault.kind == "poison" for fault in first)
    assert all(a.at_s < b.at_s for a, b in pairwise(first))
    assert 1.5 < first[-1].at_s / 300 < 2.5


def test_only_what_there_is_can_be_hit() -> None:
    first = list(islice(faults(7, 2.0, {"kill": ["decoder.0"], "twin": []}), 20))
    assert {(fault.kind, fault.victim) for fault in first} == {("kill", "decoder.0")}

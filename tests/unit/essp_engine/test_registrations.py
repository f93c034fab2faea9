"""Registration tables: by digest only, nobody undoes another's change, every change stays in the log."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from essp_common.errors import ConfigError, NotFound, PreconditionFailed
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores, open_store
from essp_engine.features.declared import DeclaredFeature, DeclaredOutput
from essp_engine.features.port import ArraySpec
from essp_engine.preflight.preflight import preflight
from essp_engine.registrations import PREFIX, Declared, ExtractorRow, Registrations, TrainerRow
from tests.harness.fleet import make_job
from tests.harness.refused import Refusal, refused

DIGEST = "registry.example/team/depth@sha256:" + "0f" * 32
OUTPUT = DeclaredOutput(shape=(1, "H", "W", "2*T-2"))
DEPTH = ExtractorRow(name="depth", image=DIGEST, output=OUTPUT, frames_needed=2)
BIG = TrainerRow(name="big", image=DIGEST, models=("resnet50",))


@pytest.fixture
def root(tmp_path: Path) -> str:
    return tmp_path.as_uri()


def tables(root: str) -> Registrations:
    return Registrations(open_store(root), ["registry.example/team/"])


def test_bounds_that_no_size_lies_within_are_refused(root: str) -> None:
    table = tables(root)
    with refused("min", "conflict"):
        table.put("extractors", DEPTH.model_copy(update={"min": 4, "max": 3}), "ann", None)
    assert table.extractors() == {}


def test_what_is_registered_is_there_for_every_master(root: str) -> None:
    first, second = tables(root), tables(root)
    etag = first.put("extractors", DEPTH, "ann", None)
    first.put("trainers", BIG, "ann", None)
    assert second.row("extractors", "depth") == (DEPTH, etag)
    assert second.extractors() == {"depth": DEPTH}
    assert second.trainers() == {"big": BIG}


def test_a_change_needs_the_version_that_was_seen(root: str) -> None:
    table = tables(root)
    etag = table.put("extractors", DEPTH, "ann", None)
    larger = DEPTH.model_copy(update={"max": 32})
    with pytest.raises(PreconditionFailed, match="read it again"):
        table.put("extractors", larger, "bob", None)
    newer = table.put("extractors", larger, "bob", etag)
    assert newer != etag
    with pytest.raises(PreconditionFailed):
        tables(root).put("extractors", DEPTH, "ann", etag)
    assert table.row("extractors", "depth") == (larger, newer)


def test_changes_of_other_rows_do_not_get_in_the_way(root: str) -> None:
    table = tables(root)
    etag = table.put("extractors", DEPTH, "ann", None)
    table.put("trainers", BIG, "bob", None)
    table.put("extractors", DEPTH.model_copy(update={"max": 2}), "ann", etag)


def test_of_many_who_change_one_row_at_once_one_wins(root: str) -> None:
    etag = tables(root).put("extractors", DEPTH, "ann", None)
    won: list[int] = []

    def change(number: int) -> None:
        row = DEPTH.model_copy(update={"max": number})
        try:
            tables(root).put("extractors", row, f"worker {number}", etag)
        except PreconditionFailed:
            return
        won.append(number)

    threads = [threading.Thread(target=change, args=(number,)) for number in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert tables(root).extractors()["depth"].max == won[0]


def test_of_many_who_register_different_rows_at_once_all_win(root: str) -> None:
    rows = [DEPTH.model_copy(update={"name": f"depth{number}"}) for number in range(8)]
    threads = [threading.Thread(target=tables(root).put, args=("extractors", row, "x", None)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(tables(root).extractors()) == {row.name for row in rows}


def test_every_change_stays_in_the_log(root: str) -> None:
    table = tables(root)
    etag = table.put("extractors", DEPTH, "ann", None)
    table.delete("extractors", "depth", "bob", etag)
    assert [(c.version, c.by, c.action, c.name) for c in table.changes()] == [
        (1, "ann", "put", "depth"),
        (2, "bob", "delete", "depth"),
    ]
    with pytest.raises(NotFound, match="not registered"):
        table.row("extractors", "depth")
    table.put("extractors", DEPTH, "ann", None)


def test_the_document_of_another_number_is_refused_and_the_one_before_it_counts_once_it_is_removed(root: str) -> None:
    """As when somebody copies one over another: it must not be read for ever."""
    table, store = tables(root), open_store(root)
    table.put("extractors", DEPTH, "ann", None)
    table.put("trainers", BIG, "ann", None)
    first, second, third = (f"{PREFIX}{number:010}.json" for number in (1, 2, 3))
    store.put(third, store.get(first))
    for reader in (table, tables(root)):
        with pytest.raises(ConfigError, match=r"0000000003.json: holds change 1; .*remove it"):
            reader.extractors()
    store.delete(third)
    store.put(first, b"damaged, and of no matter any more")
    assert (tables(root).extractors(), tables(root).trainers()) == ({"depth": DEPTH}, {"big": BIG})
    with pytest.raises(ConfigError, match=r"0000000001.json: cannot be read"):
        tables(root).changes()
    unversioned = json.loads(store.get(second))
    del unversioned["versions"]["trainers/big"]
    store.put(second, json.dumps(unversioned).encode())
    with pytest.raises(ConfigError, match=r"0000000002.json: cannot be read: versions: trainers/big has none"):
        tables(root).row("trainers", "big")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("registry.example/team/depth:latest", ("image", "invalid")),
        ("registry.example/other/depth@sha256:" + "0f" * 32, ("image", "refused")),
    ],
)
def test_only_allowed_images_by_digest_are_taken(root: str, image: str, message: Refusal) -> None:
    with refused(*message):
        tables(root).put("extractors", DEPTH.model_copy(update={"image": image}), "ann", None)
    assert tables(root).extractors() == {}


def test_where_no_image_is_allowed_none_is_taken(root: str) -> None:
    with refused("image", "refused"):
        Registrations(open_store(root)).put("extractors", DEPTH, "ann", None)


def test_the_declared_output_follows_the_clip() -> None:
    output = DeclaredOutput(shape=(1, "H/16", "W/16+1", "2*T-2"), dtype="float32")
    assert output.of(ArraySpec((11, 100, 64, 3), "uint8")) == ArraySpec((1, 7, 5, 20), "float32")


def test_an_output_of_no_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be 1 or more"):
        DeclaredOutput(shape=("T-11",)).of(ArraySpec((11, 4, 4, 3), "uint8"))


@given(st.text(max_size=12))
def test_whatever_is_no_dimension_is_refused_when_it_is_registered(text: str) -> None:
    try:
        output = DeclaredOutput(shape=(text,))
    except ValidationError:
        return
    assert output.of(ArraySpec((10**7, 10**7, 10**7, 3), "uint8")).shape[0] >= 1


def test_a_job_may_ask_for_a_feature_whose_code_is_elsewhere(tmp_path: Path) -> None:
    job = make_job(
        tmp_path,
        streams={"depth": {"feature": "depth"}},
        trainers={"depth": {"stream": "depth", "batch_size": 4, "augment": {"crop": 16}}},
    )
    stores = Stores([f"file://{tmp_path}"])
    with pytest.raises(ConfigError, match="no extractor 'depth'"):
        preflight(job, stores)
    plain = FeatureLayout(mirrored="plain")
    declared = {"depth": DeclaredFeature("depth", 2, DeclaredOutput(shape=(1, "H", "W", "2*T"), dtype="uint8"), plain)}
    assert preflight(job, stores, declared=Declared(declared)).spec == job
    greedy = {"depth": DeclaredFeature("depth", 4, OUTPUT, plain)}
    with pytest.raises(ConfigError, match="needs clips of 4 frames"):
        preflight(job, stores, declared=Declared(greedy))


def test_a_job_may_name_a_network_and_a_loss_that_only_the_image_of_a_row_has(tmp_path: Path) -> None:
    stores = Stores([f"file://{tmp_path}"])
    row = TrainerRow(name="own", image=DIGEST, models=("ownnet",), losses=("ownloss",))

    def found(declared: Declared, **changes: str) -> JobSpec:
        one = {"stream": "rgb", "batch_size": 4, "augment": {"crop": 16}, **changes}
        return preflight(make_job(tmp_path, trainers={"one": one}), stores, declared=declared).spec

    with pytest.raises(ConfigError, match=r"trainers\.one\.model: no model 'ownnet'; .*essp registry put trainers"):
        found(Declared(), model="ownnet")
    rows = Declared(trainers={"own": row})
    assert found(rows, model="ownnet", loss="ownloss").trainers["one"].model == "ownnet"
    with pytest.raises(ConfigError, match=r"trainers\.one\.loss: no loss 'otherloss'"):
        found(rows, model="ownnet", loss="otherloss")
    with pytest.raises(ConfigError, match=r"trainers\.one\.loss: no loss 'ownloss'"):
        found(rows, model="small", loss="ownloss")  # which runs in another image
    here = Declared(trainers={"own": row}, images_run=False)
    with pytest.raises(
        ConfigError, match=r"one\.model: ownnet is in the image of the registered trainer own.*=processes"
    ):
        found(here, model="ownnet")
    assert found(here, model="small").trainers["one"].model == "small"

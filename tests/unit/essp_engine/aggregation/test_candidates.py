"""Which strategies a job tries: grids in its file, and classes of other packages."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from essp_common.errors import ConfigError
from essp_common.job.spec import AggregationSpec, JobSpec, parse_spec, stored_spec
from essp_engine.aggregation import registry
from essp_engine.aggregation.candidates import candidates
from tests.harness.refused import Refusal, refused

NEAREST = '''
    from essp_engine.aggregation.means import Average


    class Nearest(Average):
        """Code of another package."""

        name = "nearest"
        summary = "As average."
        needs = "NEEDS"
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path, of which nothing stays imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("acme_fusion", None)


def install(site: Path, needs: str = "scores", name: str = "nearest") -> None:
    """A package with a strategy."""
    information = site / "acme_fusion-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_fusion\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[essp.aggregators]\n{name} = acme_fusion:Nearest\n")
    (site / "acme_fusion.py").write_text(textwrap.dedent(NEAREST).replace("NEEDS", needs))


def spec(*strategies: Any) -> AggregationSpec:
    return AggregationSpec.model_validate({"strategies": list(strategies)})


def job(strategies: str) -> JobSpec:
    return parse_spec(
        "{name: a, output: /tmp/a, trainers: {rgb: {stream: rgb}}, aggregation: {strategies: " + strategies + "}}"
    )


def test_lists_are_grids() -> None:
    found = candidates(spec("average", {"name": "top_k", "k": [1, 3], "rule": ["mean", "product"], "weights": "equal"}))
    assert [(one.name, tuple(one.params.values())) for one in found] == [
        ("average", ()),
        ("top_k", (1, "mean", "equal")),
        ("top_k", (1, "product", "equal")),
        ("top_k", (3, "mean", "equal")),
        ("top_k", (3, "product", "equal")),
    ]


def test_what_is_named_twice_is_tried_once() -> None:
    assert len(candidates(spec("max", "max", {"name": "top_k", "k": [2, 2]}, {"name": "top_k", "k": 2}))) == 2


def test_a_job_keeps_its_strategies_as_they_were_written() -> None:
    written = job("[average, {name: top_k, k: [1, 3, 5]}, {name: attention, penalty: 0.001}]")
    dumped = written.model_dump(mode="json")["aggregation"]["strategies"]
    assert dumped == ["average", {"name": "top_k", "k": [1, 3, 5]}, {"name": "attention", "penalty": 0.001}]
    assert stored_spec(written.model_dump_json(), "job") == written


@pytest.mark.parametrize(
    ("strategies", "said"),
    [
        ("[]", ("aggregation.strategies", "range")),
        ("[{k: 3}]", ("aggregation.strategies.0.name", "missing")),
        ("[{name: top_k, k: []}]", ("aggregation.strategies.0.k", "type")),
        ("[{name: top_k, k: [[1]]}]", ("aggregation.strategies.0.k", "type")),
        ("[{name: top_k, params: {k: 3}}]", ("aggregation.strategies.0.params", "type")),
        ("[7]", ("aggregation.strategies.0", "type")),
        (f"[{{name: top_k, k: {list(range(1, 300))}}}]", ("aggregation.strategies", "range")),
    ],
)
def test_what_no_job_can_mean_is_refused(strategies: str, said: Refusal) -> None:
    with pytest.raises(ConfigError) as caught:
        job(strategies)
    assert said in [(part.field, part.code) for part in caught.value.parts]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("averege", ("aggregation.strategies.0", "unknown")),
        ({"name": "average", "k": 3}, ("aggregation.strategies.0.k", "unknown")),
        ({"name": "top_k", "k": [3, 0]}, ("aggregation.strategies.0.k", "range")),
        ({"name": "top_k", "k": True}, ("aggregation.strategies.0.k", "type")),
        ({"name": "attention", "rule": "sum"}, ("aggregation.strategies.0.rule", "unknown")),
    ],
)
def test_wrong_requests_name_the_place_and_what_is_right(strategy: Any, said: Refusal) -> None:
    with refused(*said):
        candidates(spec(strategy))


def test_a_strategy_of_another_package_is_one_of_them(site: Path) -> None:
    install(site)
    assert "nearest" in registry.names()
    [found] = candidates(spec("nearest"))
    assert found.aggregator.rule == "mean"


def test_what_needs_more_than_jobs_give_is_refused(site: Path) -> None:
    install(site, needs="features")
    with pytest.raises(
        ConfigError, match=r"strategies\.0: nearest learns from the features of clips; set .*features: "
    ):
        candidates(spec("nearest"))
    asking = spec("nearest").model_copy(update={"features": True})
    assert [one.name for one in candidates(asking)] == ["nearest"]


def test_no_package_can_take_the_name_of_another_strategy(site: Path) -> None:
    install(site, name="average")
    with pytest.raises(ConfigError, match=r"several packages register the aggregator 'average': .*acme_fusion.*ESSP"):
        registry.create("average", {})


@pytest.mark.parametrize("name", registry.names())
def test_every_strategy_says_what_it_is(name: str) -> None:
    kind = registry.aggregator_class(name)
    assert kind.name == name
    assert kind.needs in ("scores", "features")
    assert kind.summary
    assert kind.__doc__
    assert [key for key, field in kind.Params.model_fields.items() if not field.description] == []

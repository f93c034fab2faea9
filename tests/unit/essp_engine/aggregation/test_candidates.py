"""Which strategies a job tries: grids in its file, and classes of other packages."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from essp_common.errors import ConfigError
from essp_common.job.spec import MOST_CANDIDATES, AggregationSpec, JobSpec, parse_spec, stored_spec
from essp_engine.aggregation import registry
from essp_engine.aggregation.candidates import candidates

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
        ("[]", "aggregation.strategies: needs 1 or more"),
        ("[{k: 3}]", "aggregation.strategies.0.name: is required"),
        ("[{name: top_k, k: []}]", "aggregation.strategies.0: k: has to be a number, a text, true or false, or a list"),
        ("[{name: top_k, k: [[1]]}]", "aggregation.strategies.0: k: has to be a number"),
        ("[{name: top_k, params: {k: 3}}]", "aggregation.strategies.0: params: has to be a number"),
        ("[7]", "aggregation.strategies.0: has to be"),
        (f"[{{name: top_k, k: {list(range(1, 300))}}}]", f"299 candidates, and {MOST_CANDIDATES} are the most"),
    ],
)
def test_what_no_job_can_mean_is_refused(strategies: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(strategies)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("averege", r"strategies\.0: no aggregator 'averege' is installed; .*did you mean average"),
        ({"name": "average", "k": 3}, r"strategies\.0: average has no parameter 'k'"),
        ({"name": "top_k", "k": [3, 0]}, r"top_k: parameter k = 0: has to be 1 or more; see `essp aggregator describe"),
        ({"name": "top_k", "k": True}, "parameter k = True: has to be a whole number"),
        ({"name": "attention", "rule": "sum"}, "parameter rule = 'sum': has to be 'mean' or 'product'"),
    ],
)
def test_wrong_requests_name_the_place_and_what_is_right(strategy: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
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

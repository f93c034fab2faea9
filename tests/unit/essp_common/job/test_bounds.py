"""Every number of a job is bounded on both sides, so that none reaches a service that cannot hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml
from essp_common.job.fields import Section, choices_of
from essp_common.job.spec import MOST_STREAMS, JobSpec, parse_spec
from tests.harness.refused import refused

LARGEST = 2**63


def numbers(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The numeric parts of a schema and where they are, without those of other models."""
    if schema.get("type") in ("integer", "number"):
        yield place, schema
    for inner in (*schema.get("anyOf", ()), *schema.get("prefixItems", ())):
        yield from numbers(inner, place)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from numbers(schema[part], f"{place}[]")


def bounded(schema: dict[str, Any]) -> bool:
    """Whether a number is bounded on both sides, by what any service can hold."""
    if "enum" in schema or "const" in schema:
        return True
    lower = schema.get("minimum", schema.get("exclusiveMinimum"))
    upper = schema.get("maximum", schema.get("exclusiveMaximum"))
    return lower is not None and upper is not None and -LARGEST <= lower <= upper <= LARGEST


def test_every_number_has_two_bounds() -> None:
    schema = JobSpec.model_json_schema()
    found = [
        found
        for model, inner in {**schema["$defs"], "JobSpec": schema}.items()
        for name, field in inner["properties"].items()
        for found in numbers(field, f"{model}.{name}")
    ]
    assert len(found) > 50
    assert [place for place, number in found if not bounded(number)] == []


@pytest.mark.parametrize("given", [{}, {"minimum": 1}, {"maximum": 1}, {"minimum": 0, "exclusiveMaximum": 2**64}])
def test_a_number_without_two_bounds_is_found(given: dict[str, int]) -> None:
    [(place, number)] = numbers({"anyOf": [{"type": "array", "items": {"type": "integer", **given}}]}, "a")
    assert (place, bounded(number)) == ("a[]", False)


def job(field: str, value: str) -> str:
    """A job in which a field, given with dots, has this value, as YAML has it."""
    *sections, last = field.split(".")
    document: dict[str, Any] = {"name": "a", "output": "file:///x", "trainers": {"rgb": {"stream": "rgb"}}}
    inner = document
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[last] = "@@"
    return json.dumps(document).replace('"@@"', value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limits.budget", "9" * 400),
        ("limits.budget", f'"{"9" * 400}"'),
        ("limits.budget", '"1e400"'),
        ("limits.budget", '"\u00b2"'),
        ("limits.budget", str(2**63)),
        ("limits.ttl_s", "5e9"),
        ("limits.ttl_s", "5000000000"),
        ("sampling.seed", str(2**63)),
        ("sampling.clips_per_epoch", str(2**63)),
        ("sampling.locality", str(2**63)),
        ("trainers.rgb.batch_size", str(2**63)),
        ("trainers.rgb.checkpoint.every", str(2**63)),
        ("trainers.rgb.optimizer.weight_decay", ".inf"),
        ("trainers.rgb.optimizer.lr", ".nan"),
        ("trainers.rgb.optimizer.steps", f"[{2**63}]"),
        ("trainers.rgb.augment.scales", "[.nan]"),
        ("trainers.rgb.augment.scales", "[]"),
        ("streams", "{}"),
        ("streams", "{" + ", ".join(f"s{i}: {{}}" for i in range(MOST_STREAMS + 1)) + "}"),
        ("streams.rgb.params", "{a: .nan}"),
        ("streams.rgb.params", "{a: {b: [.inf]}}"),
        ("streams.rgb.params", f"{{a: {2**63}}}"),
        ("streams.rgb.params", "{a: {1: 2}}"),
        ("data.train", "x" * 1000),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_name_of_the_field(field: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_spec(job(field, value))
    assert field in str(refused.value) or "not valid YAML" in str(refused.value)
    assert len(str(refused.value)) < 1000, "what is wrong is shown in part"


def test_a_date_among_the_parameters_is_text() -> None:
    assert parse_spec(job("streams.rgb.params", "{a: 2026-01-02}")).streams["rgb"].params == {"a": "2026-01-02"}


@pytest.mark.parametrize(
    ("field", "written", "meant"),
    [
        ("trainers.rgb.checkpoint.parallel", "off", "off"),
        ("trainers.rgb.checkpoint.parallel", "OFF", "off"),
        ("trainers.rgb.checkpoint.codec", "null", "none"),
        ("clip.codec.subsampling", "420", "420"),
    ],
)
def test_a_word_that_yaml_reads_as_something_else_is_what_was_written(field: str, written: str, meant: str) -> None:
    value: Any = parse_spec(job(field, written)).model_dump()
    for part in field.split("."):
        value = value[part]
    assert value == meant


@pytest.mark.parametrize("written", ["on", "true", "no", "1"])
def test_a_word_that_is_no_choice_stays_refused(written: str) -> None:
    with refused("trainers.rgb.device", "unknown"):
        parse_spec(job("trainers.rgb.device", written))


@pytest.mark.parametrize(
    ("field", "written", "words"),
    [
        ("epochs", "yes", "must be a whole number, got True"),
        ("trainers.rgb.seed", "on", "must be a whole number, got True"),
        ("trainers.rgb.augment.mixup", "true", "must be a number, got True"),
        ("limits.budget", "on", "must be a whole number, got True"),
        ("epochs", "12:30", "must be a whole number, got '12:30'"),
        ("trainers.rgb.ema", "0:0.5", "must be a number, got '0:0.5'"),
        ("data.train", "no", "must be text, got False (yes, no, on and off go in quotes)"),
        ("data.train", "7", "must be text, got 7 (numbers go in quotes)"),
        ("data.train", "[a]", "must be text"),
    ],
)
def test_what_only_yaml_takes_for_something_else_is_refused(field: str, written: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_spec(job(field, written))
    assert f"{field}: {words}" in str(refused.value)


def test_off_is_the_nought_of_a_number_and_a_time_is_text() -> None:
    spec = parse_spec(job("trainers.rgb.ema", "off"))
    assert spec.trainers["rgb"].ema == 0
    assert parse_spec(job("data.train", "12:30")).data.train == "12:30"


def test_each_choice_of_a_job_may_be_written_as_it_is_named() -> None:
    """Without quotes, whatever YAML makes of it."""
    for kind in _sections(JobSpec):
        for name, field in kind.model_fields.items():
            for word in choices_of(field.annotation):
                words = kind._words_that_yaml_reads_otherwise({name: read_yaml(str(word), "test")})  # type: ignore[operator]
                assert words == {name: word}


def _sections(kind: Any, seen: set[type[Section]] | None = None) -> set[type[Section]]:
    """The sections that a job has, in any depth."""
    seen = set() if seen is None else seen
    if isinstance(kind, type) and issubclass(kind, Section) and kind not in seen:
        seen.add(kind)
        for field in kind.model_fields.values():
            _sections(field.annotation, seen)
    for inner in get_args(kind):
        _sections(inner, seen)
    return seen

"""Errors of settings carry what programs need as data: the field, the code, the single problems."""

from __future__ import annotations

import pickle

from essp_common.errors import ConfigError, NotFound


def test_field_and_code_are_data_beside_the_text() -> None:
    error = ConfigError("must be 1 or more, got 0", field="batch_size", code="range")
    assert (error.field, error.code, error.problem) == ("batch_size", "range", "must be 1 or more, got 0")
    assert str(error) == "batch_size: must be 1 or more, got 0"


def test_an_error_of_no_field_is_its_text() -> None:
    assert str(ConfigError("there are two of them")) == "there are two of them"


def test_a_field_within_a_section_keeps_its_code() -> None:
    error = ConfigError("gray has none", field="params.colour", code="conflict").within("streams.rgb")
    assert (error.field, error.code) == ("streams.rgb.params.colour", "conflict")
    assert ConfigError("no such feature", code="unknown").within("streams.rgb").field == "streams.rgb"


def test_several_errors_within_a_section_are_each_of_it() -> None:
    several = ConfigError.together(
        [ConfigError("is required", field="lr", code="missing"), ConfigError("no", field="k")]
    )
    within = several.within("trainers.rgb")
    assert [part.field for part in within.parts] == ["trainers.rgb.lr", "trainers.rgb.k"]
    assert str(within).splitlines() == [
        "there are 2 problems:",
        "  trainers.rgb.lr: is required",
        "  trainers.rgb.k: no",
    ]


def test_an_error_of_another_kind_becomes_one_of_the_field_that_names_the_thing() -> None:
    error = ConfigError.at("data.catalog", NotFound("no file /a"))
    assert (error.field, error.code, error.problem) == ("data.catalog", "not_found", "no file /a")
    nested = ConfigError.at("output", ConfigError("not allowed", field="ESSP_STORES", code="refused"))
    assert (nested.field, nested.code, nested.problem) == ("output", "refused", "ESSP_STORES: not allowed")


def test_an_error_crosses_processes_whole() -> None:
    error = ConfigError("two problems", parts=[ConfigError("is required", field="name", code="missing")])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes
    assert [(part.field, part.code, str(part)) for part in copy.parts] == [("name", "missing", "name: is required")]

"""A face names the fields of a job as its users know them: in the field of an error, and in its text."""

from __future__ import annotations

import pytest

from essp_common.artifacts.removal import NoOutput
from essp_common.errors import ConfigError
from essp_common.field_names import fields_named, name_of, renamed, renamed_in_text
from essp_common.job.spec import JobSpec

NAMES = {
    "epochs": "--epochs",
    "data.catalog": "catalog",
    "clip.resize": "clip.size",
    "clip.resize.height": "clip.size",
    "limits.budget": "memory",
    "streams.loop": "feature",
    "streams.loop.params": "params",
    "consumers.loop-2.batch_size": "batch_size",
    "sampling": "",
}


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("epochs", "--epochs"),
        ("clip.resize", "clip.size"),
        ("clip.resize.height", "clip.size"),
        ("clip.resize.mode", "clip.size.mode"),
        ("clip.stride", "clip.stride"),
        ("streams.loop.params.length", "params.length"),
        ("streams.loop.codec", "feature.codec"),
        ("streams.loops", "streams.loops"),
        ("sampling.step", "step"),
        ("", ""),
    ],
)
def test_the_longest_name_that_is_known_counts(field: str, name: str) -> None:
    assert name_of(field, NAMES) == name


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("raise limits.budget.", "raise memory."),
        ("`limits.budget` or (clip.resize.height)", "`memory` or (clip.size)"),
        ("set streams.loop.params.length=5, or epochs", "set params.length=5, or epochs"),
        ("consumers.loop-2.batch_size = 4", "batch_size = 4"),
        # Values that users gave, and other words.
        ("there is no data.catalog.parquet", "there is no data.catalog.parquet"),
        ("there is no file 'data.catalog' or /a/data.catalog", "there is no file 'data.catalog' or /a/data.catalog"),
        ("limits.budgets, 1.limits.budget and limits.budget/a", "limits.budgets, 1.limits.budget and limits.budget/a"),
    ],
)
def test_only_whole_paths_of_fields_are_renamed_in_a_text(text: str, renamed: str) -> None:
    assert renamed_in_text(text, NAMES, JobSpec) == renamed


def test_an_error_keeps_its_code() -> None:
    error = renamed(ConfigError("lower it, or raise limits.budget", field="epochs", code="range"), NAMES, JobSpec)
    assert (error.field, error.code, str(error)) == ("--epochs", "range", "--epochs: lower it, or raise memory")


def test_each_problem_of_a_document_is_renamed() -> None:
    parts = [ConfigError("is required", field="data.catalog", code="missing"), ConfigError("is odd", field="epochs")]
    error = renamed(ConfigError.together(parts, "limits.budget and more:"), NAMES, JobSpec)
    assert [(part.field, part.code) for part in error.parts] == [("catalog", "missing"), ("--epochs", "invalid")]
    assert str(error).splitlines() == ["memory and more:", "  catalog: is required", "  --epochs: is odd"]


def test_errors_that_leave_a_block_are_renamed() -> None:
    cause = ValueError("4 epochs")
    with pytest.raises(ConfigError) as caught, fields_named(NAMES, JobSpec):
        raise ConfigError("too many", field="epochs") from cause
    assert (caught.value.field, caught.value.__cause__) == ("--epochs", cause)


def test_an_error_of_a_kind_of_its_own_stays_of_that_kind() -> None:
    """Callers catch it by its class."""
    with pytest.raises(NoOutput), fields_named(NAMES, JobSpec):
        raise NoOutput("nothing is there", field="output")

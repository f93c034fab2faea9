"""What people write in YAML is taken as it stands, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc ", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
def test_what_is_written_is_read(value: Any) -> None:
    assert read_yaml(yaml.safe_dump(value), "test") == value


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x7f")))
def test_what_json_escapes_is_read(text: str) -> None:
    """Beyond U+FFFF it writes two escapes for a character."""
    assert read_yaml(json.dumps([text]), "test") == [text]


@pytest.mark.parametrize("text", [r'name: "\ud800"', r'{"\udfff": 1}', r'["\ude00\ud83d"]', "name: \ud800"])
def test_half_a_character_is_refused(text: str) -> None:
    """No message could carry it, and no terminal show it."""
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, "test")
    str(caught.value).encode()


def test_what_is_given_twice_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"job.yaml: .*'epochs' is given twice \(again in line 4\)"):
        read_yaml("epochs: 3\nclip:\n  frames: 11\nepochs: 5\n", "job.yaml")
    assert read_yaml("a: {x: 1}\nb: {x: 2}\n", "test") == {"a": {"x": 1}, "b": {"x": 2}}


@pytest.mark.parametrize(
    "text", ["[", "a: b: c", "!!python/object/apply:os.system [ls]", "x: 2026-99-99", "? [a]\n: 1"]
)
def test_what_is_no_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_yaml(text, "test")

"""What people write in YAML is taken as it stands, or refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.job import documents
from essp_common.job.documents import MOST_CHARACTERS, MOST_DEPTH, MOST_VALUES, read_yaml

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
    "text",
    ["[", "a: b: c", "!!python/object/apply:os.system [ls]", "x: !!binary aGFsbG8=", "x: !!set {a}", "? [a]\n: 1"],
)
def test_what_is_no_plain_yaml_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_yaml(text, "test")


def doubling(levels: int, opening: str, closing: str) -> str:
    """A few hundred bytes that stand for `9 ** levels` values."""
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{i}: &a{i} {opening}{', '.join([f'*a{i - 1}'] * 9)}{closing}" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (doubling(12, "[", "]"), "aliases"),
        (doubling(12, "{<<: [", "]}"), "aliases"),
        (f"a: &a {'x' * (MOST_CHARACTERS // 2)}\nb: [*a, *a, *a]", "aliases"),
        ("a: &a [*a]", "an alias to what contains it"),
        ("a: &a {<<: *a}", "an alias to what contains it"),
        ("a: &a\n  <<: &b {x: [*a]}", "an alias to what contains it"),
        ("[" * 10_000, f"deeper than {MOST_DEPTH}"),
        ("{a: " * 10_000, f"deeper than {MOST_DEPTH}"),
        ("- " * 10_000, f"deeper than {MOST_DEPTH}"),
        ("[" + "1," * (MOST_VALUES + 1) + "]", f"more than {MOST_VALUES}"),
        ("x: " + "9" * 5000, "a number of 5000"),
        ("x: 0x" + "f" * 5000, "a number of 5002"),
        ("x: !!int 1" + ":1" * 5000, "a number of 10001"),
        ("#" * (MOST_CHARACTERS + 1), "is the most"),
    ],
)
def test_what_stands_for_more_than_a_job_can_need_is_refused_before_it_is_built(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_yaml(text, "test")


def test_aliases_and_merge_keys_within_bounds_are_read() -> None:
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]", "test") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": [{"x": 1, "y": 2}] * 2,
    }


def test_a_date_is_the_text_that_was_written() -> None:
    assert read_yaml("a: 2026-01-02\nb: 2026-99-99\nc: 2001-12-14t21:59:43.10-05:00", "test") == {
        "a": "2026-01-02",
        "b": "2026-99-99",
        "c": "2001-12-14t21:59:43.10-05:00",
    }


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_any_text_is_read_or_refused(seed: int, length: int) -> None:
    """Tokens that mean something to YAML, in any order."""
    tokens = ["&a ", "*a", "<<: ", "- ", "? ", ": ", "[", "]", "{", "}", ",", "!!int ", "!!bool ", "!!map ", "!!str "]
    tokens += [
        "!!float ",
        "!!seq ",
        "!!null ",
        "!!set ",
        "!x ",
        "''",
        '"',
        "|\n",
        ">\n",
        "\n",
        "  ",
        "=",
        "~",
        ".nan",
        "0x",
    ]
    tokens += ["a", "1:2", "%YAML 1.1\n", "---\n", "...\n", "#", "\t", "\x00", "\ud800", "2026-01-02", "9" * 70]
    text = "".join(random.Random(seed).choices(tokens, k=length))
    with pytest.MonkeyPatch.context() as patch:
        fast = read_or_refused(text)
        patch.setattr(documents, "_Fast", documents._Strict)
        slow = read_or_refused(text)
    assert fast == slow or ("\t" in text and slow is None), "it depends on how PyYAML was built"


def read_or_refused(text: str) -> str | None:
    """What a text stands for, as JSON; None if it is refused."""
    try:
        return json.dumps(read_yaml(text, "test"))
    except ConfigError as refused:
        str(refused).encode()
        return None

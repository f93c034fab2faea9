"""Any job file is accepted, or refused in words that name the field: by `essp validate` and by the API alike."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import EsspError
from essp_common.objects.directory import DirectoryStore
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from essp_master.service import Master
from tests.adversary.storms import ODD_NUMBERS, ODD_TEXTS, storm
from tests.harness.command_line import essp
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.serving import JSON, served
from tests.harness.waiting import LONGEST_S

DEEP: Any = None
for _ in range(60):
    DEEP = [DEEP]
ODD_VALUES = st.one_of(
    ODD_NUMBERS,
    ODD_TEXTS,
    st.none() | st.booleans(),
    st.sampled_from([[], {}, [[]], {"": 0}, {1: 2}, {"a": {"b": {"c": [1, None, {"d": 1.5}]}}}, DEEP, [0] * 3000]),
    st.sampled_from(["2026-01-02", "2026-99-99", "package:small", "s3://b/../../x", "file:///x/%2e%2e/y", "rgb", "c0"]),
    st.dictionaries(ODD_TEXTS, ODD_NUMBERS, max_size=3),
    st.lists(ODD_NUMBERS, max_size=4),
)
OUTLINE = re.compile(r"\bTraceback\b|File \".*\", line")


@dataclass(frozen=True)
class Place:
    """A master that nobody works for, and a sound job."""

    folder: Path
    master: Master
    client: httpx.Client
    document: dict[str, Any]

    @property
    def file(self) -> Path:
        return self.folder / "job.yaml"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("jobs")
    with closing(adapters_in(folder)) as adapters, pytest.MonkeyPatch.context() as environment:
        environment.setenv("ESSP_STORES", json.dumps([folder.as_uri()]))
        master = master_over(adapters)
        document = json.loads(make_job(folder).model_dump_json())
        app = create_app(master, MasterSettings())
        with served(app) as url, httpx.Client(base_url=url, timeout=LONGEST_S, verify=False, headers=JSON) as client:
            yield Place(folder, master, client, document)


def places(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document, by keys and numbers."""
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inner:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from places(value, (*before, key))


def below(document: Any, path: tuple[Any, ...]) -> list[Any]:
    """The names within what stands at a place."""
    for part in path:
        document = document[part]
    return list(document) if isinstance(document, dict) else []


@st.composite
def changed(draw: st.DrawFn, document: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A document in which one value, or the name of one, is another; and where."""
    result = deepcopy(document)
    path = draw(st.sampled_from(list(places(document))))
    parent: Any = result
    for part in path[:-1]:
        parent = parent[part]
    match draw(st.sampled_from(["value"] * 6 + ["name", "remove"])):
        case "value":
            parent[path[-1]] = draw(ODD_VALUES)
        case "name" if isinstance(parent, dict):
            parent[draw(ODD_TEXTS)] = parent.pop(path[-1])
        case _:
            del parent[path[-1]]
    return path, result


def written(document: Any) -> str:
    """As YAML; half a character cannot stand in a file."""
    text: str = yaml.safe_dump(document, allow_unicode=True)
    return text.encode("utf-8", "replace").decode()


def validated(place: Place, text: str) -> str:
    """What `essp validate` says against a job; empty: nothing."""
    place.file.write_text(text, encoding="utf-8")
    try:
        done = essp("validate", str(place.file), "--json", "--fresh")
    except EsspError as error:
        return str(error) or "without a word"
    assert done.exit_code == 0, done.output
    return ""


def posted(place: Place, text: str) -> str:
    """What the API says against a job; empty: it has started, and is stopped. What an earlier one, of another name, has
    left in the output may go: that is asked at a terminal."""
    params, stored = {"fresh": "true"}, place.folder / "out" / "spec.json"
    if stored.exists():
        params["replaces"] = json.loads(stored.read_text("utf-8"))["name"]
    answer = place.client.post("/v1/jobs", params=params, content=text.encode())
    if answer.status_code == 202:
        place.master.stop(answer.json()["name"])
        place.master.step(0)
        return ""
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def in_short(text: str) -> str:
    return text if len(text) < 1000 else text[:1000] + "..."


@given(data=st.data())
@storm(30)
def test_a_job_with_one_odd_value_is_accepted_or_refused_by_its_name(place: Place, data: st.DataObject) -> None:
    path, document = data.draw(changed(place.document))
    text = written(document)
    said = validated(place, text)
    answered = posted(place, text)
    assert bool(said) == bool(answered), (said, answered)
    if said:
        assert not OUTLINE.search(said + answered)
        assert len(said) < 20_000, in_short(said)
        names = {str(part) for part in (*path, *below(place.document, path)) if isinstance(part, str)}
        assert any(name in said for name in names) or "not valid YAML" in said, in_short(said)


TOKENS = [
    *("&a ", "*a", "<<: ", "- ", "? ", ": ", "[", "]", "{", "}", ",", "!!int ", "!!float ", "!!str ", "!!map "),
    *("!!null", "''", '"', "|\n", ">\n", "\n", "  ", "~", ".nan", "0x", "1:2", "%YAML 1.1\n", "---\n", "...\n", "#"),
    *("\t", "\x00", "2026-01-02", "9" * 70, "name", "clip", "streams", "<<: [*a, *a]", "\u2028", "\ufeff"),
    *('"\\ud800"', '"\\0"'),
]  # fmt: skip


@given(data=st.data())
@storm(20)
def test_a_job_file_with_damaged_text_is_accepted_or_refused(place: Place, data: st.DataObject) -> None:
    text = written(place.document)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        more = data.draw(st.sampled_from(TOKENS) | st.text(max_size=5))
        text = text[:at] + more + text[at + data.draw(st.sampled_from([0, 1, 5, 200])) :]
    text = text.encode("utf-8", "replace").decode()
    said = validated(place, text)
    answered = posted(place, text)
    assert bool(said) == bool(answered), (said, answered)


@given(body=st.binary(max_size=200))
@storm(10)
def test_any_bytes_as_a_job_are_refused(place: Place, body: bytes) -> None:
    place.file.write_bytes(body)
    with pytest.raises(EsspError):
        essp("validate", str(place.file))
    answer = place.client.post("/v1/jobs", content=body)
    assert answer.status_code == 422


def test_after_the_storms_a_sound_job_is_accepted(place: Place) -> None:
    assert validated(place, written(place.document)) == ""
    assert posted(place, written(place.document)) == ""


def test_nothing_is_written_outside_of_the_stores_whatever_a_job_says(place: Place) -> None:
    """After the storms above, and with the URIs that people try."""
    root = DirectoryStore.from_url(place.folder.as_uri())
    for uri in ("..", "../..", "/", "file:///", f"file://{place.folder}/../x", f"{place.folder}/../x", "s3://b/x", "~"):
        said = posted(place, written({**place.document, "name": "small", "output": uri}))
        assert "output" in said, (uri, said)
    beside = [path.name for path in place.folder.parent.iterdir() if path != place.folder]
    assert not [name for name in beside if name in ("x", "escaped")]
    assert {info.key.split("/")[0] for info in root.list()} >= {"catalog.parquet"}

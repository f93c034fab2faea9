"""Targets: what is packed comes back equal, and bytes that are no targets are refused without filling the memory."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from essp_common.catalog.targets import MOST_BYTES, Span, Targets, pack, unpack
from essp_common.errors import ConfigError
from tests.harness.refused import refused

NAMES = st.text(min_size=1, max_size=8)
FRAMES = st.integers(0, 2**31)
SPANS = st.tuples(FRAMES, FRAMES, NAMES).map(lambda s: Span(min(s[0], s[1]), max(s[0], s[1]), s[2]))
SERIES = st.dictionaries(
    NAMES,
    arrays.arrays(
        st.sampled_from(["<f4", ">f8", "i8", "u1", "?"]),
        arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    max_size=3,
)


@given(labels=st.lists(NAMES, max_size=3), spans=st.lists(SPANS, max_size=4), series=SERIES)
def test_what_is_packed_comes_back(labels: list[str], spans: list[Span], series: dict[str, Any]) -> None:
    packed = pack(Targets(tuple(labels), tuple(spans), series))
    found = unpack(packed)
    assert (found.labels, list(found.spans)) == (tuple(labels), sorted(spans))
    assert found.series.keys() == series.keys()
    for name, values in series.items():
        assert found.series[name].shape == values.shape
        np.testing.assert_array_equal(found.series[name], values)
    named = unpack(packed, names_only=True)
    assert named.names == frozenset(labels) | {span.name for span in spans}
    kinds = {name: (values.dtype, values.shape[1:]) for name, values in found.series.items()}
    assert {name: (values.dtype, values.shape[1:]) for name, values in named.series.items()} == kinds
    assert not any(len(values) for values in named.series.values())
    assert bool(packed) == bool(labels or spans or series)


@given(st.binary(min_size=1, max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    for hostile in (data, zlib.compress(data)):
        with pytest.raises(ConfigError, match="build the catalog again"):
            unpack(hostile)


@pytest.mark.parametrize(
    "header",
    [
        b'{"labels":[],"spans":[],"series":{"a":["<f4",[100000,100000]]}}',
        b'{"labels":[],"spans":[],"series":{"a":["<f4",[-1]]}}',
        b'{"labels":[],"spans":[],"series":{"a":["O",[1]]}}',
        b'{"labels":[],"spans":[],"series":{"a":["<f4",[]]}}',
        b'{"labels":[],"spans":[],"series":{"a":["<f4",[9]]}}',
        b'{"labels":[],"spans":[[1,2]],"series":{}}',
        b'{"labels":1,"spans":[],"series":{}}',
        b'{"labels":[],"spans":[[Infinity,1,"a"]],"series":{}}',
        b'{"labels":[],"spans":[],"series":{"a":["<f4",[Infinity]]}}',
        pytest.param(b"[" * 100_000, id="deep"),
        b"[]",
    ],
)
def test_headers_that_promise_what_is_not_there_are_refused(header: bytes) -> None:
    with pytest.raises(ConfigError, match="targets cannot be read"):
        unpack(zlib.compress(len(header).to_bytes(4, "little") + header))


@pytest.mark.parametrize("series", [1, 3])
def test_series_that_would_fill_the_memory_are_not_unpacked(series: int) -> None:
    promised = {str(name): ["u1", [MOST_BYTES // series + 1]] for name in range(series)}
    header = json.dumps({"labels": [], "spans": [], "series": promised})
    with pytest.raises(ConfigError, match="larger than any row's"):
        unpack(zlib.compress(len(header).to_bytes(4, "little") + header.encode()))


def test_a_header_that_would_fill_the_memory_is_not_unpacked() -> None:
    bomb = zlib.compress((MOST_BYTES + 1).to_bytes(4, "little") + bytes(2**20))
    with pytest.raises(ConfigError, match="larger than any row's"):
        unpack(bomb)


def test_anything_but_numbers_a_frame_is_refused() -> None:
    for values in (np.array(["a"]), np.array(1.0)):
        with refused("targets", "type"):
            pack(Targets(series={"x": values}))

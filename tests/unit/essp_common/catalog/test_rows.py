"""Rows of a catalog: what they say beside their columns."""

from __future__ import annotations

import pytest

from essp_common.catalog.rows import extra_of, meta_of
from essp_common.errors import ConfigError


def test_further_columns_come_back() -> None:
    meta = {"camera": "left", "take": 3, "odd": "\udcff\u00e9"}
    assert meta_of("v", extra_of(meta)) == meta
    assert meta_of("v", extra_of({})) == {}


@pytest.mark.parametrize("extra", ["{", "[1]", "null", "1e", pytest.param("[" * 100_000, id="deep")])
def test_what_is_no_json_object_is_refused(extra: str) -> None:
    with pytest.raises(ConfigError, match="v: column extra is not"):
        meta_of("v", extra)

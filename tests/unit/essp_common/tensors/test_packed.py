"""Files of arrays: exact to the bit, quantised within their bound, and refused in words where they are damaged."""

from __future__ import annotations

import json
import struct
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from essp_common.errors import PermanentError
from essp_common.tensors.packed import (
    EXACT,
    MAGIC,
    Base,
    Codec,
    DamagedTensors,
    Packing,
    Scope,
    base_of,
    described,
    pack,
    unpack,
)
from essp_common.tensors.quantize import quantize, range_of, restored
from tests.harness.refused import refused

Array = NDArray[Any]
DTYPES = ("float16", "float32", "float64", "bool", "int8", "uint16", "int32", "int64", "uint64")
CODECS: tuple[Codec, ...] = ("none", "gzip", "zstd")
SCOPES: tuple[Scope, ...] = ("channel", "tensor", "global")


def bits_of(array: Array) -> bytes:
    """NaN differ by their bits, too, and so do zeros by their sign."""
    return np.ascontiguousarray(array).tobytes()


def same(found: dict[str, Array], expected: dict[str, Array]) -> bool:
    return found.keys() == expected.keys() and all(
        found[n].dtype == a.dtype and found[n].shape == a.shape and bits_of(found[n]) == bits_of(a)
        for n, a in expected.items()
    )


@st.composite
def any_arrays(draw: st.DrawFn) -> dict[str, Array]:
    names = draw(st.lists(st.text(max_size=5), unique=True, max_size=4))
    dtypes = st.sampled_from(DTYPES).map(np.dtype)
    shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    return {name: draw(npst.arrays(draw(dtypes), draw(shapes))) for name in names}


@given(any_arrays(), st.sampled_from(CODECS), st.booleans())
def test_what_is_exact_comes_back_to_the_bit(arrays: dict[str, Array], codec: Codec, planes: bool) -> None:
    data = pack(arrays, Packing(codec=codec, planes=planes))
    assert same(unpack(data), arrays)
    assert [(d.name, d.dtype, d.shape, d.bits) for d in described(data)] == [
        (name, str(array.dtype), array.shape, 0) for name, array in arrays.items()
    ]


@given(any_arrays(), st.randoms(use_true_random=False), st.booleans())
def test_differences_are_exact(arrays: dict[str, Array], chance: Any, planes: bool) -> None:
    """To a base with some of the arrays, some of another shape or type, and any numbers, NaN and infinities too."""
    other: dict[str, Array] = {}
    for name, array in arrays.items():
        if chance.random() < 0.8:
            other[name] = np.frombuffer(chance.randbytes(array.nbytes), array.dtype).reshape(array.shape)
        elif chance.random() < 0.5:
            other[name] = np.zeros((2, 3), np.float32)
    base = Base("step 7", other)
    data = pack(arrays, Packing(planes=planes), base)
    assert same(unpack(data, base), arrays)
    if base_of(data):
        for wrong in (None, Base("step 8", other)):
            with pytest.raises(DamagedTensors, match="differences to step 7, which was not given"):
                unpack(data, wrong)


def weights(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Array:
    """As those of a network: channels of very different sizes."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp(rng.normal(-3, 1, (shape[0], *[1] * (len(shape) - 1))))).astype(dtype)


@given(
    st.integers(2, 16),
    st.sampled_from(SCOPES),
    st.booleans(),
    npst.arrays(
        st.sampled_from((np.float16, np.float32, np.float64)),
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
        elements=st.floats(-60000, 60000, width=16),
    ),
)
@example(3, "channel", False, np.array([0, -59300, 59300], np.float16))
def test_every_number_is_restored_within_half_a_step(bits: int, scope: Scope, keep: bool, array: Array) -> None:
    other = weights((3, 4), dtype=array.dtype)
    arrays = {"a": array, "b": other}
    packing = Packing(bits=bits, scope=scope, exact_one_dimensional=keep)
    found = unpack(pack(arrays, packing))
    quantised = [a for a in arrays.values() if a.size and (a.ndim > 1 or not keep)]
    for name, original in arrays.items():
        assert found[name].dtype == original.dtype
        if not any(original is each for each in quantised):
            assert bits_of(found[name]) == bits_of(original)
            continue
        pool = quantised if scope == "global" else [original]
        rows = [original.reshape(len(original), -1)] if scope == "channel" and original.ndim > 1 else None
        exact = original.astype(np.float64)
        apart = np.abs(found[name].astype(np.float64) - exact)
        if rows is not None:
            wide = exact.reshape(len(exact), -1)
            step = (wide.max(axis=1) - wide.min(axis=1)) / (2**bits - 1)
            limit = np.broadcast_to(step[:, None] / 2, wide.shape).reshape(exact.shape)
        else:
            most, least = (float(pick([pick(each) for each in pool])) for pick in (max_of, min_of))
            limit = np.full(exact.shape, (most - least) / (2**bits - 1) / 2)
        # And the rounding of its type: of the largest number there is, and of the smallest.
        rounding = np.finfo(original.dtype).eps * 65504 + float(np.finfo(original.dtype).tiny)
        assert (apart <= limit + rounding).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e300])
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_one_range_for_arrays_of_several_types_is_kept_by_each(bits: int, scale: float) -> None:
    arrays = {
        "half": weights((40, 50), 0, np.float16),
        "single": weights((40, 50), 1),
        "double": weights((40, 50), 2, np.float64) * scale,
    }
    found = unpack(pack(arrays, Packing(bits=bits, scope="global")))
    exact = {name: array.astype(np.float64) for name, array in arrays.items()}
    step = (max(a.max() for a in exact.values()) - min(a.min() for a in exact.values())) / (2**bits - 1)
    for name, array in arrays.items():
        rounding = np.finfo(array.dtype).eps * np.abs(exact[name])
        assert (np.abs(found[name].astype(np.float64) - exact[name]) <= step / 2 + rounding).all()


def max_of(values: Any) -> Any:
    return np.max(values)


def min_of(values: Any) -> Any:
    return np.min(values)


def test_a_range_for_each_channel_keeps_small_channels_apart() -> None:
    """With the one range over all parameters that the paper prints, a layer of small weights is a few codes."""
    small, large = weights((8, 50)) / 1000, weights((8, 50), 1) * 10
    arrays = {"small": small, "large": large}
    codes = {scope: len(np.unique(unpack(pack(arrays, Packing(bits=8, scope=scope)))["small"])) for scope in SCOPES}
    assert codes["global"] <= 2
    assert codes["tensor"] > 10
    assert codes["channel"] > 8 * 20


@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("odd", [0, -1])
def test_what_lies_outside_of_a_range_goes_to_its_edge_and_is_said(bits: int, odd: int) -> None:
    """Wherever it stands: the array is longer than what is rounded at a time."""
    found = range_of([np.array([0, 1], np.float32)], bits)
    array = np.full((1, 100_000), 0.5, np.float32)
    array[0, odd] = 3
    array[0, 1] = -1
    codes, beyond = quantize(array, bits, found)
    again = restored(codes, found, array.dtype)
    assert (again[0, odd], again[0, 1]) == (pytest.approx(1), 0)
    assert beyond == pytest.approx(2 - float(found.scale[0]) / 2, rel=1e-5)
    assert quantize(array.clip(0, 1), bits, found)[1] == 0


def test_constant_arrays_and_integers_are_exact_at_any_number_of_bits() -> None:
    arrays = {"zeros": np.zeros((3, 4), np.float32), "thirds": np.full((2, 2), 1 / 3, np.float32), "n": np.array([7])}
    assert same(unpack(pack(arrays, Packing(bits=2, exact_one_dimensional=False))), arrays)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_quantised(scope: Scope, odd: float) -> None:
    broken = weights((3, 4))
    broken[1, 2] = odd
    arrays = {"layer.weight": weights((3, 4)), "layer.broken": broken}
    with pytest.raises(PermanentError, match=r"layer\.broken has infinities or NaN.*save it exactly"):
        pack(arrays, Packing(bits=8, scope=scope))
    assert same(unpack(pack(arrays)), arrays)


def test_odd_numbers_of_bits_are_refused() -> None:
    for bits in (-1, 1, 17):
        with refused("bits", "range"):
            Packing(bits=bits)


def test_types_that_have_no_place_are_refused() -> None:
    with pytest.raises(PermanentError, match="c: arrays of complex128 cannot be written"):
        pack({"c": np.zeros(2, np.complex128)})


def test_each_step_makes_weights_smaller() -> None:
    """Byte planes of noise come to 0.85 of it, a small change to much less, eight bits to a quarter."""
    before = weights((64, 512))
    after = (before * (1 + 1e-3 * np.random.default_rng(3).standard_normal(before.shape))).astype(np.float32)
    size = {
        "gzip": len(pack({"w": after}, Packing(codec="gzip", planes=False))),
        "planes": len(pack({"w": after})),
        "difference": len(pack({"w": after}, EXACT, Base("b", {"w": before}))),
        "eight": len(pack({"w": after}, Packing(bits=8))),
    }
    share = {name: count / after.nbytes for name, count in size.items()}
    assert share["eight"] < 0.27 < share["difference"] < 0.6 < share["planes"] < 0.88 < share["gzip"] < 0.95


def packed_files() -> list[bytes]:
    arrays = {"w": weights((4, 30)), "n": np.arange(40), "b": np.zeros(3, np.float32), "": np.float64(3)}
    base = Base("base", {"w": weights((4, 30), 5)})
    return [
        pack({name: np.asarray(array) for name, array in arrays.items()}, packing, given)
        for packing in (EXACT, Packing(bits=8), Packing(bits=12, codec="gzip"), Packing(codec="none", planes=False))
        for given in (None, base)
    ]


FILES = packed_files()
BASE = Base("base", {"w": weights((4, 30), 5)})


@settings(max_examples=300)
@given(st.sampled_from(FILES), st.data())
def test_damaged_files_are_refused_or_read_right(data: bytes, draw: st.DataObject) -> None:
    """Cut, lengthened, or with other bytes anywhere: never other numbers, never another error.

    Names and the ranges of quantised arrays have no checksum of their own here; the store that keeps files has.
    """
    whole = unpack(data, BASE)
    place = draw.draw(st.integers(0, len(data) - 1))
    change = draw.draw(st.sampled_from(("cut", "flip", "more")))
    spoilt = {
        "cut": data[:place],
        "flip": data[:place] + bytes([data[place] ^ draw.draw(st.integers(1, 255))]) + data[place + 1 :],
        "more": data + b"x",
    }[change]
    try:
        found = unpack(spoilt, BASE)
    except DamagedTensors:
        return
    assert change == "flip"
    assert len(found) == len(whole)
    for exact, other in zip(whole.values(), found.values(), strict=True):
        if not any(each.bits for each in described(data)):
            assert bits_of(exact) == bits_of(other)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a file of packed arrays"),
        (b"\x80" * 100, "not a file of packed arrays"),
        (MAGIC, "ends within its header"),
        (MAGIC + struct.pack("<Q", 2**63) + b"{}", "ends within its header"),
        (MAGIC + struct.pack("<Q", 2) + b"{}", "header cannot be read"),
        (MAGIC + struct.pack("<Q", 4) + b"null", "header cannot be read"),
        (MAGIC + struct.pack("<Q", 25) + b'{"version":2,"arrays":[]}', "of version 2; this program reads version 1"),
    ],
)
def test_other_files_are_refused_in_words(data: bytes, words: str) -> None:
    with pytest.raises(DamagedTensors, match=words):
        unpack(data)


def test_an_empty_array_of_rounded_numbers_without_a_range_is_refused() -> None:
    empty = {"name": "a", "dtype": "float32", "shape": [0, 3], "bits": 8, "ranges": 0, "difference": False}
    entry = {**empty, "planes": False, "pieces": [{"codec": "none", "stored": 0}], "crc": 0}
    header = json.dumps({"version": 1, "base": "", "arrays": [entry]}).encode()
    with pytest.raises(DamagedTensors, match="a: its ranges are damaged"):
        unpack(MAGIC + struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize("packing", [EXACT, Packing(bits=8), Packing(planes=False), Packing(codec="gzip")])
def test_a_small_file_of_much_is_refused_where_less_is_wanted(packing: Packing) -> None:
    data = pack({"zeros": np.zeros((2, 2**19), np.float32), "one": np.ones(1)}, packing)
    assert len(data) < 2**14
    size = 2 * 2**19 * 4 + 8
    with pytest.raises(DamagedTensors, match=f"its arrays have {size:,} bytes, and {size - 1:,} are the most"):
        unpack(data, most_bytes=size - 1)
    assert unpack(data, most_bytes=size)["zeros"].shape == (2, 2**19)


def test_a_header_that_asks_for_all_memory_is_refused() -> None:
    arrays = {"w": np.zeros((100, 100), np.float32)}
    shapes = (b"[140000000000,140000000000]", b"[140000000000,140000000000,140000000000]", b"[40000,40000]")
    for shape, codec in product(shapes, CODECS):
        data = pack(arrays, Packing(codec=codec))
        changed = data.replace(b"[100,100]", shape)
        header = struct.unpack("<Q", data[8:16])[0] + len(changed) - len(data)
        with pytest.raises(DamagedTensors):
            unpack(changed[:8] + struct.pack("<Q", header) + changed[16:])

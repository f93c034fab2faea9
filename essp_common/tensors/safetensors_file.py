"""Writes arrays in the safetensors format, which other tools read, without needing its library.

    length of the header, 8 bytes | header, JSON: name -> dtype, shape, range of bytes | the arrays, little-endian

See https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import PermanentError

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
_ALIGNMENT = 8


def as_safetensors(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A file of these arrays, the widest types first, so that all are aligned.

    Raises `PermanentError`, which names the array, for types that the format does not support.
    """
    header: dict[str, dict[str, object]] = {}
    parts: list[bytes] = []
    end = 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        if (dtype := _DTYPES.get(array.dtype.name)) is None:
            raise PermanentError(f"{name}: arrays of {array.dtype} have no place in a safetensors file")
        parts.append(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join((struct.pack("<Q", len(text)), text, *parts))

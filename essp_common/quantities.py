"""Quantities as users write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

_MOST_DIGITS = 20
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(us|ms|s|min)", re.ASCII)
_ROUNDED_OFF = 1e-12
"""Rounding may make a mean of ones smaller than one by this much."""
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def size(count: float) -> str:
    """Bytes in the largest binary unit that gives a number of at least one: `1.0 KiB`, `512 MiB`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 100 or units[0] == "B" else f"{value:.1f} {units[0]}"


def counted(count: int, thing: str) -> str:
    """`1 file`, `2 files`, `1,024 files`, `2 boxes`, `2 batches`, `2 entries`, `2 ways`."""
    if count == 1:
        return f"1 {thing}"
    if thing.endswith("y") and thing[-2] not in "aeo":
        return f"{count:,} {thing[:-1]}ies"
    return f"{count:,} {thing}" + ("es" if thing.endswith(("tch", "s", "x")) else "s")


def percent(share: float | None, digits: int = 1) -> str:
    """0.123 as `12.3 %`; only exactly 1 as `100.0 %`; a dash for None."""
    if share is None:
        return "–"
    least_missing = 10.0**-digits
    nearly = 100 - least_missing < 100 * share < 100 * (1 - _ROUNDED_OFF)
    return f"{100 - least_missing if nearly else 100 * share:.{digits}f} %"


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 05 s`, `1 h 02 min`."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {left:02} s"


def energy(joules: float) -> str:
    """`412 Wh`, `1.2 kWh`."""
    hours = joules / 3600
    return f"{hours / 1000:.1f} kWh" if hours >= 1000 else f"{hours:.0f} Wh" if hours >= 10 else f"{hours:.1f} Wh"


def parse_seconds(text: str) -> float:
    """`"50ms"`, `"1.5s"`, `"200us"` as seconds. Raises `ValueError`."""
    found = _DURATION.fullmatch(text.strip().replace(" ", ""))
    if found is None:
        raise ValueError(f"{text!r} is not a time; write for example 50ms or 1.5s")
    return float(found[1]) * _SECONDS[found[2]]


def parse_bytes(value: object) -> object:
    """`"256MiB"` as an integer number of bytes; numbers are returned unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip().upper().replace(" ", "")
    number = text.rstrip("KMGTIB")
    unit = text[len(number) :]
    digits = number.replace(".", "", 1)
    if unit not in _UNITS or not (digits.isascii() and digits.isdigit()) or len(digits) > _MOST_DIGITS:
        raise ValueError(f"{value!r} is not a size; write for example 256MiB or 2GB")
    return int(float(number) * _UNITS[unit])

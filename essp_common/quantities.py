"""Quantities as people read them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes in the largest binary unit that leaves a number of at least one: `1.0 KiB`, `512 MiB`."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 100 or units[0] == "B" else f"{value:.1f} {units[0]}"

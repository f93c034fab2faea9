"""zstd decompression within a size bound, for data from untrusted writers."""

from __future__ import annotations

import zstandard


def decompressed(data: bytes, most_bytes: int) -> bytes:
    """Decompress a zstd frame. Raises `ZstdError` if it is damaged or expands to more than `most_bytes`.

    `max_output_size` alone is not a bound: zstandard ignores it if the frame declares its size.
    """
    if zstandard.frame_content_size(data) > most_bytes:
        raise zstandard.ZstdError(f"it comes to more than {most_bytes} bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=most_bytes)

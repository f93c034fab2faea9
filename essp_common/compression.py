"""zstd within a bound, of what others may have written."""

from __future__ import annotations

import zstandard


def decompressed(data: bytes, most_bytes: int) -> bytes:
    """A frame of zstd, decompressed. Raises `ZstdError` if it is damaged or comes to more than `most_bytes`.

    `max_output_size` alone is no bound: it is not looked at where the frame says how large it is.
    """
    if zstandard.frame_content_size(data) > most_bytes:
        raise zstandard.ZstdError(f"it comes to more than {most_bytes} bytes")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=most_bytes)

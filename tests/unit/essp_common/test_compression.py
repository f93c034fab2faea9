"""What others have written takes no more memory than it may."""

from __future__ import annotations

import pytest
import zstandard

from essp_common.compression import decompressed


@pytest.mark.parametrize("told", [True, False])
def test_no_more_comes_out_than_the_bound(told: bool) -> None:
    """Whether the frame tells its size or not."""
    data = zstandard.ZstdCompressor(write_content_size=told).compress(bytes(1000))
    assert decompressed(data, 1000) == bytes(1000)
    with pytest.raises(zstandard.ZstdError):
        decompressed(data, 999)


def test_other_bytes_are_no_frame() -> None:
    with pytest.raises(zstandard.ZstdError):
        decompressed(b"no frame of zstd", 1000)

"""Settings of processes that decode in child processes: the common service settings, and the limits of the children."""

from __future__ import annotations

from pydantic import ByteSize, Field

from essp_common.runtime.config import Settings
from essp_engine.decoding.protocol import ChildConfig
from essp_engine.decoding.sandbox import SandboxOptions


class DecodingSettings(Settings):
    """What decoding child processes may use, and for how long."""

    decoder_timeout_s: float = Field(120.0, gt=0)
    """Maximum seconds for the seeds of one message, after which the child is killed.

    It may have to decode a whole film. A message whose seeds are tried again, one by one, takes up to six times as
    long; choose it so that this is less than `stuck_s`.
    """
    decoder_memory: ByteSize = Field(ByteSize(4 * 2**30), ge=2**29)
    """Address space of a child. An 8K video needs about 2 GiB."""
    decoder_clip_bytes: ByteSize = Field(ByteSize(2 * 2**30), ge=2**20)
    """Maximum size of all clips of one message."""
    decoder_units: int = Field(10_000, ge=1)
    """A child is replaced after this many messages, so that memory leaks of a library stay small."""
    decoder_open_videos: int = Field(16, ge=1, le=256)
    """Most recently used videos that a child keeps open; fewer if they fill a quarter of its memory."""
    decoder_video_bytes: ByteSize = Field(ByteSize(64 * 2**30), ge=2**20)
    """Larger files are refused."""
    decoder_frame_pixels: int = Field(8192 * 4320, ge=64)
    """Videos with more pixels in a frame are refused."""

    def sandbox(self) -> SandboxOptions:
        """The sandbox of each lane."""
        config = ChildConfig(
            stores=self.stores,
            open_videos=self.decoder_open_videos,
            video_bytes=self.decoder_video_bytes,
            frame_pixels=self.decoder_frame_pixels,
            address_bytes=self.decoder_memory,
            unit_s=self.decoder_timeout_s,
        )
        return SandboxOptions(config, self.decoder_timeout_s, self.decoder_units, self.decoder_clip_bytes)

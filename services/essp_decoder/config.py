"""Settings of a decoder: those of every service (`essp_common.runtime.config`), and how its children are kept."""

from __future__ import annotations

from pydantic import ByteSize, Field

from essp_common.runtime.config import Settings


class DecoderSettings(Settings):
    """What a decoder needs to know. What to decode, and how, comes with each seed."""

    decoder_processes: int = Field(0, ge=0, le=1024)
    """Videos decoded at a time, each in a child process of one thread. 0: as many as CPUs (cgroup limits count)."""
    decoder_timeout_s: float = Field(120.0, gt=0)
    """Longest time for the seeds of one message; then the child is killed. A whole film may have to be decoded."""
    decoder_memory: ByteSize = Field(ByteSize(4 * 2**30), ge=2**29)
    """Address space of a child. An 8K video needs about 2 GiB."""
    decoder_clip_bytes: ByteSize = Field(ByteSize(2 * 2**30), ge=2**20)
    """Most bytes of the clips of one message."""
    decoder_units: int = Field(10_000, ge=1)
    """A child is replaced after so many messages, so that what a library leaks stays small."""
    decoder_open_videos: int = Field(16, ge=1, le=256)
    """Videos that a child keeps open between messages, the latest used; fewer if they fill a quarter of its memory."""
    decoder_video_bytes: ByteSize = Field(ByteSize(64 * 2**30), ge=2**20)
    """A larger file is refused."""
    decoder_frame_pixels: int = Field(8192 * 4320, ge=64)
    """A video with larger frames is refused."""

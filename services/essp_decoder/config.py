"""Settings of a decoder: those of every service (`essp_common.runtime.config`), and of its child processes."""

from __future__ import annotations

from pydantic import ByteSize, Field

from essp_common.runtime.config import Settings


class DecoderSettings(Settings):
    """What a decoder needs to know. What to decode, and how, comes with each seed."""

    decoder_processes: int = Field(0, ge=0, le=1024)
    """Videos decoded at the same time, each in a child process of one thread. 0: one per CPU (cgroup limits count)."""
    decoder_timeout_s: float = Field(120.0, gt=0)
    """Maximum time for the seeds of one message, after which the child is killed.

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
    decoder_cache: ByteSize = Field(ByteSize(0), ge=0)
    """Memory for compressed video from object stores, which all child processes of a decoder share; the least recently
    used goes first. What fits is read from the store once, and not in each epoch. 0: none.

    Videos on this machine's disk are not kept: the kernel does that.
    """
    decoder_video_bytes: ByteSize = Field(ByteSize(64 * 2**30), ge=2**20)
    """Larger files are refused."""
    decoder_frame_pixels: int = Field(8192 * 4320, ge=64)
    """Videos with more pixels in a frame are refused."""

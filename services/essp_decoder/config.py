"""Settings of a decoder: how its child processes decode (`essp_engine.decoding.settings`), and their number."""

from __future__ import annotations

from pydantic import ByteSize, Field

from essp_engine.decoding.settings import DecodingSettings


class DecoderSettings(DecodingSettings):
    """Settings of a decoder. What to decode, and how, comes with each seed."""

    decoder_processes: int = Field(0, ge=0, le=1024)
    """Number of videos to decode in parallel, each in a single-threaded child process. 0: one per CPU (cgroup limits
    count)."""
    decoder_cache: ByteSize = Field(ByteSize(0), ge=0)
    """Memory for compressed video from object stores, shared by all child processes of a decoder and evicted least
    recently used first. Video that fits is read from the store once instead of in each epoch. 0: no cache.

    Videos on local disks are not cached here: the kernel does that.
    """

"""Settings of a decoder: those of its child processes (`essp_engine.decoding.settings`), and how many it has."""

from __future__ import annotations

from pydantic import ByteSize, Field

from essp_engine.decoding.settings import DecodingSettings


class DecoderSettings(DecodingSettings):
    """What a decoder needs to know. What to decode, and how, comes with each seed."""

    decoder_processes: int = Field(0, ge=0, le=1024)
    """Videos decoded at the same time, each in a child process of one thread. 0: one per CPU (cgroup limits count)."""
    decoder_cache: ByteSize = Field(ByteSize(0), ge=0)
    """Memory for compressed video from object stores, which all child processes of a decoder share; the least recently
    used goes first. What fits is read from the store once, and not in each epoch. 0: none.

    Videos on this machine's disk are not kept: the kernel does that.
    """

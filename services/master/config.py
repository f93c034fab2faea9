"""Settings of the master: those of every service (`essp_common.config`), its API, and its patience."""

from __future__ import annotations

from pydantic import Field, SecretStr

from essp_common.config import Settings


class MasterSettings(Settings):
    """What a master needs to know. What to do is in the jobs."""

    api_token: SecretStr = SecretStr("")
    """Who calls the API has to show this token (`Authorization: Bearer ...`)."""
    api_open: bool = False
    """Serve the API without a token: for a trusted network only."""
    api_body_bytes: int = Field(2**20, ge=1024)
    """Largest request body; a job is some kilobytes."""
    stall_s: float = Field(60.0, gt=0)
    """A job with clips outstanding of which nothing is heard for so long has them issued again; each time in a row
    the wait doubles, up to an hour."""
    poll_records: int = Field(2000, ge=1)
    """Messages of `essp.progress` accounted for at once."""

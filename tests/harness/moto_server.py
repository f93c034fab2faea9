"""moto's S3, in memory: an implementation of S3 that is independent of ours, for tests."""

from __future__ import annotations

import sys

from essp.servers.servers import S3Server
from essp_common.errors import Unavailable


class MotoServer(S3Server):
    """Accepts any credentials."""

    def create_bucket(self, bucket: str) -> None:
        """Create a bucket, if it does not exist. Raises `Unavailable` if the server refuses."""
        status = self._request("PUT", f"/{bucket}")
        if status not in (200, 409):
            raise Unavailable(f"s3: creating the bucket {bucket} failed with status {status}")

    def _command(self) -> list[str]:
        return [sys.executable, "-P", "-m", "moto.server", "-H", self.address.host, "-p", str(self.port)]

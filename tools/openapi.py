"""Write docs/openapi.json, the description of the REST API: `make docs`. The fuzz tests of the API compare it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.fleet import adapters_in, master_over

DESCRIPTION = Path(__file__).parents[1] / "docs" / "openapi.json"


def main() -> None:
    """Write it."""
    with tempfile.TemporaryDirectory() as folder:
        adapters = adapters_in(Path(folder))
        document = create_app(master_over(adapters), MasterSettings()).openapi()
        adapters.close()
    DESCRIPTION.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

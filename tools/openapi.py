"""`python -m tools.openapi --write`: make `docs/openapi.json`, what a master says of its REST API."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.fleet import adapters_in, master_over
from tools.written import ROOT, settle

DESCRIPTION = ROOT / "docs" / "openapi.json"


def description() -> str:
    """What a master tells at `/openapi.json`, in lines."""
    with tempfile.TemporaryDirectory() as folder:
        adapters = adapters_in(Path(folder))
        try:
            document = create_app(master_over(adapters), MasterSettings()).openapi()
        finally:
            adapters.close()
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    settle({DESCRIPTION: description()})

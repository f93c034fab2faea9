"""That no example is left out, and that each imports essp in time."""

from __future__ import annotations

import re

from tests.install.readme import ROOT
from tests.install.steps import EXAMPLES, NOT_RUN, steps

SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/examples").glob("*.py")}


def test_each_example_is_run() -> None:
    assert EXAMPLES.keys() | NOT_RUN == SCRIPTS.keys()
    assert {step.name for step in steps(examples=True)} > EXAMPLES.keys()
    assert not {step.name for step in steps(examples=False)} & EXAMPLES.keys()


def test_examples_import_essp_before_what_may_load_torchvision() -> None:
    """The tests cannot see it: they have imported essp long before."""
    for name, script in SCRIPTS.items():
        imported = re.findall(r"^(?:import|from) (\w+)", script, flags=re.MULTILINE)
        loading = [
            imported.index(one) for one in ("torchvision", "lightning", "transformers", "accelerate") if one in imported
        ]
        assert all(imported.index("essp") < place for place in loading), name

"""The recorder alone changes a job's ledger, so that the history holds every change."""

from __future__ import annotations

import ast
from pathlib import Path

import essp_master

CHANGES = frozenset({"start", "account", "issue", "pause", "resume", "stalled", "ended"})
"""What changes a ledger (`essp_master/ledger/ledger.py`)."""


def changes_in(path: Path) -> list[str]:
    """The places of a module where a ledger is changed."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        called = node.func if isinstance(node, ast.Call) else None
        stored = node if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) else None
        for place in (called, stored):
            if not isinstance(place, ast.Attribute) or place.attr not in CHANGES:
                continue
            owner = place.value
            if getattr(owner, "attr", getattr(owner, "id", "")) == "ledger":
                found.append(f"{path.name}:{place.lineno}: ledger.{place.attr}")
    return found


def test_only_the_recorder_changes_the_ledger() -> None:
    root = Path(essp_master.__file__).parent
    modules = [path for path in root.rglob("*.py") if "ledger" not in path.relative_to(root).parts[:1]]
    changed = {path.name: changes_in(path) for path in modules}
    assert len(changed.pop("recorder.py")) >= len(CHANGES), "the search finds what it looks for"
    assert [place for places in changed.values() for place in places] == []

"""`import torchvision` after `import essp`: once, and again only where it says that its operators are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from essp_engine.learning import torchvision_import

MISSING = "operator torchvision::nms does not exist"


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The declarations, of which torch knows nothing. What is called torchvision lies in `tmp_path`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torchvision", "torchvision.ops"):  # the imports of a test are undone, too
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    made: list[object] = []
    monkeypatch.setattr(torchvision_import, "_declared", made)
    monkeypatch.setattr(torchvision_import, "_declare", lambda: made.append("operators"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    torchvision_import.install()
    return made


def write_torchvision(folder: Path, code: str) -> None:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(code, encoding="utf-8")
    (folder / "torchvision" / "ops.py").write_text("imported = []\n", encoding="utf-8")


def test_it_is_imported_again_once_the_missing_operators_are_declared(tmp_path: Path, declared: list[object]) -> None:
    write_torchvision(
        tmp_path,
        f"""
import sys
from essp_engine.learning import torchvision_import
from torchvision import ops
ops.imported.append(1)
if not torchvision_import.declared():
    raise RuntimeError({MISSING!r})
""",
    )
    import torchvision

    assert declared == ["operators"]
    assert torchvision.ops.imported == [1], "nothing of the import that failed is left"
    assert sys.modules["torchvision"] is torchvision


def test_where_it_loads_nothing_is_declared(tmp_path: Path, declared: list[object]) -> None:
    """To declare operators twice ends the process."""
    write_torchvision(tmp_path, "from torchvision import ops")
    import torchvision

    assert torchvision.ops
    assert torchvision.__spec__.loader.get_source("torchvision"), "tracebacks show its lines"
    assert not declared


@pytest.mark.parametrize("error", [RuntimeError("no kernel image"), ImportError(MISSING), RuntimeError(MISSING)])
def test_what_does_not_help_is_told_as_it_is(tmp_path: Path, declared: list[object], error: Exception) -> None:
    write_torchvision(tmp_path, f"raise {error!r}")
    with pytest.raises(type(error), match=str(error)):
        import torchvision  # noqa: F401
    assert len(declared) == (repr(error) == repr(RuntimeError(MISSING)))

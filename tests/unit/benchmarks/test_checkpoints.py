"""What the figures of checkpoints stand on: files are what a trainer writes, and hold what was trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.checkpoint_saver import Saver, torch_save
from benchmarks.papers.check_qzp.ways import WAYS
from essp_common.tensors.packed import Packing, unpack
from essp_engine.learning.models import as_tensors


@pytest.mark.parametrize("packing", [way.packing for way in WAYS.values() if way.name in ("Z", "P", "ZP")])
def test_what_is_saved_without_rounding_is_what_torch_saves(tmp_path: Path, packing: Packing) -> None:
    tensors = {"model.tensors": {"a": torch.randn(8, 3), "b": torch.arange(5)}, "optimizer.tensors": {}}
    saver = Saver(tmp_path, parallel=False, packing=packing)
    saver.save(tensors)
    saver.close()
    packed = as_tensors(unpack((tmp_path / "model.tensors").read_bytes()))
    torch_save(tensors, tmp_path)
    saved = torch.load(tmp_path / "model.tensors")
    assert saved.keys() == packed.keys()
    assert all(torch.equal(saved[name], packed[name]) for name in saved)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.tensors", "optimizer.tensors"]


def test_all_combinations_are_there_and_those_with_q_for_both_ranges() -> None:
    assert [name for name in WAYS if "Q" not in name] == ["none", "Z", "P", "ZP", "essp"]
    with_q = [(way.name, way.packing) for way in WAYS.values() if "Q" in way.name]
    assert {name for name, _ in with_q} == {"Q", "QZ", "QP", "QZP"}
    for name, packing in with_q:
        assert packing is not None
        assert packing.bits == 8
        assert packing.codec == ("gzip" if "Z" in name else "none")
        assert packing.exact_one_dimensional == (packing.scope == "channel")
    assert {name for name, way in WAYS.items() if way.parallel} == {
        *("P", "ZP", "essp"), *("QP.global", "QP.channel", "QZP.global", "QZP.channel"),
    }  # fmt: skip

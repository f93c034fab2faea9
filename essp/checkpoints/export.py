"""Exports a model in fewer bytes: the same manifest with weights that are compressed and, on request, quantised.

    manifest.json      as before, with the bits of each member's weights; written last
    <trainer>.tensors  the weights (`essp_common/tensors/packed.py`)

`essp predict`, predict jobs and `essp.load_model` accept it like any other model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from essp_common.artifacts.fused_model import MANIFEST, FusedModel, strategy_state
from essp_common.artifacts.sealed import sealed
from essp_common.errors import Conflict, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.tensors.packed import Packing, pack, unpack
from essp_engine.learning.models import arrays_of, member_tensors
from essp_engine.learning.networks import StateDict


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported weights of one member."""

    trainer: str
    before_bytes: int
    after_bytes: int
    error: float
    """The largest error of a value, relative to the largest value of its tensor; 0: exact."""


def export(
    source: ObjectStore, model: FusedModel, target: ObjectStore, packing: Packing, code: Sequence[str] = ()
) -> list[Exported]:
    """Write a model into an empty folder. `code`: packages that define its networks (`ESSP_CODE`).

    Raises `Conflict` if the folder already has a model, `PermanentError` for damaged weights, and `ConfigError` if a
    network is not installed.
    """
    try:
        target.head(MANIFEST)
    except NotFound:
        pass
    else:
        raise Conflict(f"{target.uri(MANIFEST)} is there already; name another folder, or remove it first")
    exported, members = [], []
    for member in model.members:
        packed, error = _packed(member_tensors(source, member, code), packing)
        name = f"{member.trainer}.tensors"
        target.put(name, packed)
        exported.append(Exported(member.trainer, source.head(member.file).size_bytes, len(packed), error))
        bits = packing.bits or member.bits
        members.append(
            member.model_copy(update={"file": name, "sha256": hashlib.sha256(packed).hexdigest(), "bits": bits})
        )
    if model.state is not None:
        strategy_state(source, model)
        target.put(model.state.file, source.get(model.state.file))
    target.put(MANIFEST, sealed(model.model_copy(update={"members": tuple(members)})), if_absent=True)
    return exported


def _packed(weights: StateDict, packing: Packing) -> tuple[bytes, float]:
    """The file with these weights, and its largest error (see `Exported`)."""
    arrays = arrays_of(weights)
    packed = pack(arrays, packing)
    found = unpack(packed)
    worst = max(
        (
            float(abs(found[name].astype("f8") - array).max()) / (float(abs(array).max()) or 1.0)
            for name, array in arrays.items()
            if array.size
        ),
        default=0.0,
    )
    return packed, worst

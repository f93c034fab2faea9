"""The files of checkpoints: each is read with one other at most, and holds exactly what was given."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common.errors import PermanentError
from essp_common.tensors.packed import EXACT, Base, Packing, base_of, unpack
from essp_trainer.checkpoints.delta_packer import PackedFile, Packer

Floats = NDArray[np.float32]
PACKINGS = {"model": EXACT, "momentum": EXACT}


class Learning:
    """Weights that hardly move from step to step, and momentum that is another one each time."""

    def __init__(self, packer: Packer) -> None:
        self.packer = packer
        self.random = np.random.default_rng(1)
        self.weights = self.random.normal(size=(64, 200)).astype(np.float32)
        self.step = 0
        self.kept: dict[tuple[str, str], PackedFile] = {}

    def save(self, completed: bool = True, moved: float = 1e-4) -> dict[str, str]:
        """Move, save, and read what was saved; which checkpoint each file needs."""
        self.step += 1
        noise = self.random.normal(size=self.weights.shape).astype(np.float32)
        self.weights = (self.weights * (1 + moved * noise)).astype(np.float32)
        state = {"model": {"w": self.weights.T}, "momentum": {"m": noise}}
        files = self.packer.pack(f"{self.step}-1", state, PACKINGS)
        self.packer.settle(completed)
        for file in files:
            self.kept[f"{self.step}-1", file.name] = file
            [array] = self.read(file).values()
            [expected] = state[file.name].values()
            assert array.tobytes() == np.ascontiguousarray(expected).tobytes()
        return {file.name: "" if file.base is None else file.base.checkpoint for file in files}

    def read(self, file: PackedFile) -> dict[str, Floats]:
        base = None
        if file.base is not None:
            needed = self.kept[file.base.checkpoint, file.name]
            assert needed.base is None, "a base stands alone"
            assert (file.base.size_bytes, file.base.sha256) == (len(needed.data), needed.sha256)
            base = Base(file.base.checkpoint, unpack(needed.data))
        return unpack(file.data, base)


def test_differences_are_to_one_checkpoint_until_there_is_a_new_one() -> None:
    learning = Learning(Packer(delta=True, exact_every=3))
    needed = [learning.save() for _ in range(7)]
    assert [each["model"] for each in needed] == ["", "1-1", "1-1", "", "4-1", "4-1", ""]
    assert {each["momentum"] for each in needed} == {""}, "it is not worth it"
    sizes = [len(learning.kept[f"{step}-1", "model"].data) for step in (1, 2)]
    assert sizes[1] < 0.6 * sizes[0]


def test_what_was_not_completed_is_no_base() -> None:
    learning = Learning(Packer(delta=True, exact_every=9))
    assert learning.save(completed=False)["model"] == ""
    learning.packer.settle(completed=True)  # of a save that found nothing to be written
    assert learning.save()["model"] == ""
    assert learning.save(completed=False)["model"] == "2-1"
    assert learning.save()["model"] == "2-1"


def test_a_difference_that_is_worth_it_no_more_makes_a_new_base_of_all_files() -> None:
    learning = Learning(Packer(delta=True, exact_every=99))
    assert [learning.save()["model"] for _ in range(2)] == ["", "1-1"]
    assert learning.save(moved=10.0) == {"model": "", "momentum": ""}
    assert learning.save()["model"] == "3-1"


def test_a_file_whose_first_difference_is_not_worth_it_has_none_until_the_next_base() -> None:
    packer = Packer(delta=True, exact_every=4)
    first, other = np.random.default_rng(1).normal(size=(2, 64, 200)).astype(np.float32)
    bases = []
    for number, momentum in enumerate((first, other, first, first, first, first)):
        model, file = packer.pack(f"{number}-1", {"model": {"w": first}, "momentum": {"m": momentum}}, PACKINGS)
        packer.settle(completed=True)
        bases.append([each.base and each.base.checkpoint for each in (model, file)])
    assert bases == [[None, None], ["0-1", None], ["0-1", None], ["0-1", None], [None, None], ["4-1", "4-1"]]


@pytest.mark.parametrize("packer", [Packer(delta=False, exact_every=9), Packer(delta=True, exact_every=1)])
def test_without_differences_each_stands_alone(packer: Packer) -> None:
    learning = Learning(packer)
    assert {learning.save()["model"] for _ in range(3)} == {""}


def test_what_stands_alone_changes_no_base() -> None:
    packer = Packer(delta=True, exact_every=9)
    learning = Learning(packer)
    learning.save()
    [final] = packer.pack("end", {"model": {"w": learning.weights}}, {"model": PACKINGS["model"]}, alone=True)
    packer.settle(completed=True)
    assert base_of(final.data) == ""
    assert final.base is None
    assert learning.save()["model"] == "1-1"


def test_rounded_files_are_no_differences_and_no_bases() -> None:
    packer = Packer(delta=True, exact_every=9)
    weights = np.random.default_rng(0).normal(size=(8, 50)).astype(np.float32)
    for packing in (Packing(bits=8), EXACT, Packing(bits=8)):
        [file] = packer.pack("x", {"model": {"w": weights}}, {"model": packing})
        packer.settle(completed=True)
        assert file.base is None
        difference = np.abs(unpack(file.data)["w"] - weights)
        scale = np.ptp(weights, axis=1, keepdims=True) / 255
        assert (difference <= (0.5001 * scale if packing.bits else 0)).all()


def test_what_only_rounded_files_follow_is_no_base_any_more() -> None:
    """Nothing keeps it in the store."""
    packer = Packer(delta=True, exact_every=9)
    weights = np.random.default_rng(0).normal(size=(8, 50)).astype(np.float32)
    for packing in (EXACT, Packing(bits=8), EXACT):
        [file] = packer.pack("x", {"model": {"w": weights}}, {"model": packing})
        packer.settle(completed=True)
        assert file.base is None


def test_what_is_not_finite_is_written_exactly_if_asked() -> None:
    arrays = {"bad": np.array([[1, np.nan], [np.inf, 0]], np.float32), "good": np.eye(2, dtype=np.float32)}
    with pytest.raises(PermanentError, match="bad has infinities or NaN"):
        Packer(delta=False, exact_every=1).pack("x", {"model": arrays}, {"model": Packing(bits=8)})
    for scope in ("channel", "global"):
        asked = Packing(bits=8, scope=scope, not_finite="exact")
        [file] = Packer(delta=False, exact_every=1).pack("x", {"model": arrays}, {"model": asked})
        assert unpack(file.data)["bad"].tobytes() == arrays["bad"].tobytes()

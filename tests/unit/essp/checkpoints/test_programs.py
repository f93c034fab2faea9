"""Networks as programs for other runtimes: the answers of the network, from decoded frames."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import essp
from essp.checkpoints import programs
from essp_common.errors import Conflict, PermanentError
from tests.harness.command_line import essp as command
from tests.harness.predictor_bench import WEIGHTS, model_at
from tests.harness.refused import Refusal, refused
from tests.lanes import often

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter of torch shows no progress, and yet starts the thread that watches progress bars."""
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)


def clips_of(shape: list[int], dtype: str) -> np.ndarray:
    """Three clips of two corners and a ramp."""
    rows, columns = np.mgrid[0 : shape[1], 0 : shape[2]]
    ramp = (rows * 2 + columns * 3)[None, None, :, :, None] + np.arange(3)[:, None, None, None, None] * 40
    clips = np.broadcast_to(ramp, (3, *shape)).copy()
    clips[..., 0] //= 2
    return (clips % 256).astype(dtype) if dtype == "uint8" else (clips / 255 - 0.5).astype(dtype)


@pytest.mark.lane("promises")
@pytest.mark.parametrize(("form", "views"), often([("torch", 1), ("onnx", 10)], 1))
def test_a_program_gives_the_answers_of_the_network(tmp_path: Path, form: str, views: int) -> None:
    """Also for another number of clips, of another picture than it was compared with, and in a mirror."""
    model = model_at(tmp_path, views)
    done = command("checkpoint", "export", model, "--out", str(tmp_path / "out"), "--format", form, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "out" / "model.json").read_text())
    assert document == json.loads(done.stdout)
    assert document["classes"] == ["left", "right", "up"]
    found = essp.load_model(model)
    assert document["networks"].keys() == found.streams.keys() == WEIGHTS.keys()
    for name, network in document["networks"].items():
        clips = clips_of(network["input"]["shape"][1:], network["input"]["dtype"])
        path = tmp_path / "out" / network["file"]
        if form == "onnx":
            session = programs.onnx_runtime().InferenceSession(path, providers=["CPUExecutionProvider"])
            [answers] = session.run([network["output"]["name"]], {network["input"]["name"]: clips})
        else:
            answers = torch.export.load(path).module()(torch.from_numpy(clips)).detach().numpy()
        expected = np.stack([found.streams[name].score(clip) for clip in clips])
        assert np.abs(answers - expected).max() < 2e-3
        assert network["weight"] == WEIGHTS[name]
    with pytest.raises(Conflict, match=r"model\.json is there already"):
        command("checkpoint", "export", model, "--out", str(tmp_path / "out"), "--format", form)


def test_nobody_is_told_what_is_exported() -> None:
    """The file in which ONNX Runtime keeps what it will send is not there."""
    assert programs.onnx_runtime().__version__
    opened = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if "onnxruntime" in path]


@pytest.mark.lane("promises")
def test_a_program_with_other_answers_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = essp.load_model(model_at(tmp_path))
    stream = model.streams["rgb"]
    monkeypatch.setitem(programs._WAYS, "torch", lambda whole, clips: (b"", np.eye(len(clips), 3)))
    with pytest.raises(PermanentError, match="rgb: the torch program gives other answers than the network"):
        programs.program(model, stream, (32, 40), "torch")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bits", "8"), ("--format", "conflict")),
        (("--frame", "32"), ("--frame", "type")),
        (("--frame", "0x40"), ("--frame", "type")),
    ],
)
def test_what_does_not_fit_a_program_is_refused(tmp_path: Path, words: tuple[str, ...], message: Refusal) -> None:
    with refused(*message):
        command("checkpoint", "export", "x", "--out", str(tmp_path / "out"), "--format", "onnx", *words)


def test_frames_of_many_sizes_need_to_be_said(tmp_path: Path) -> None:
    model = essp.load_model(model_at(tmp_path))
    loose = model.clip.model_copy(update={"resize": model.clip.resize.model_copy(update={"mode": "short_side"})})
    other = replace(model, clip=loose)
    with refused("--frame", "missing"):
        programs.frame_size(other, None)
    assert programs.frame_size(other, (32, 40)) == (32, 40)

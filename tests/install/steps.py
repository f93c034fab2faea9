"""What is done in an environment once ESSP is installed: scripts of bash, each in the folder of the one before."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from tests.install import readme

EXAMPLES = {
    "accelerate_loop.py": "catalog.parquet --epochs 1 --size 32",
    "export_features.py": "catalog.parquet features --feature frame_diff --short-side 32",
    "frames_at_a_rate.py": "catalog.parquet --max-frames 4 --size 40",
    "finetune_3d.py": "catalog.parquet --epochs 1 --size 32 --frames 8",
    "flow.py": "catalog.parquet --epochs 1 --size 32",
    "hogwild.py": "records --epochs 1",
    "hugging_face_trainer.py": "catalog.parquet --epochs 1 --model tiny-model",
    "learning_rates.py": "catalog.parquet --epochs 1 --size 32",
    "lightning_module.py": "catalog.parquet --epochs 1 --size 32",
    "linear_probe.py": "catalog.parquet --size 32 --clips 12 --steps 20",
}
"""Of docs/examples -> arguments with which each is done soon."""
NOT_RUN = {"lerobot_policy.py", "robot_policy.py", "two_views.py"}
"""They need data sets of LeRobot and of events; `tests/flow/test_robots.py` and `test_views.py` make them."""

_MAKE_SMALL = """
import yaml
job = yaml.safe_load(open("job.yaml"))
job["epochs"] = 1
job["sampling"]["clips_per_epoch"] = 32
for trainer in job["trainers"].values():
    trainer["augment"] = {"crop": 64, "flip": False}
job["clip"]["resize"] = {"mode": "crop", "height": 64, "width": 64}
open("job.yaml", "w").write(yaml.safe_dump(job))
"""
_TINY_MODEL_AND_PICTURES = """
import os
import cv2
import essp
import numpy as np
from transformers import VideoMAEConfig, VideoMAEForVideoClassification
VideoMAEForVideoClassification(VideoMAEConfig(
    image_size=224, patch_size=16, num_frames=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=8, decoder_hidden_size=8, decoder_num_attention_heads=2, decoder_intermediate_size=8,
    num_labels=12,
)).save_pretrained("tiny-model")
for name in ("one", "two"):
    os.makedirs(f"pictures/{name}")
    for number in range(40):
        cv2.imwrite(f"pictures/{name}/{number}.png", np.full((32, 32, 3), number, np.uint8))
"""
_NOTEBOOK = """
import nbformat
from nbclient import NotebookClient
NotebookClient(nbformat.read("notebook.ipynb", as_version=4), timeout=300).execute()
"""
_NAMES = """
import essp
print(essp.__version__, *(getattr(essp, name).__name__ for name in essp.__all__))
"""
_LOADER_OF_THE_README = """
import torch
step = look_at = lambda *given: None
torch.set_num_threads(2)
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A script and what it is called in the table."""

    name: str
    script: str


def steps(examples: bool) -> Iterator[Step]:
    """Everything after the install. `examples`: also those that need other frameworks, which this installs."""
    yield Step("import", _python(_NAMES))
    yield Step("essp doctor", "essp doctor")
    yield Step("essp demo", "essp demo --videos-per-class 6 --epochs 1 --clips-per-epoch 48")
    yield Step("README's commands", _commands())
    yield Step("README's Python", _python(_LOADER_OF_THE_README + readme.python()))
    if examples:
        yield Step("install frameworks", 'pip install --quiet "$WHEEL[frameworks]"')
        records = "essp records build pictures --out records --encode raw --size 32"
        yield Step("make a model and records", _python(_TINY_MODEL_AND_PICTURES) + records)
        for name, arguments in EXAMPLES.items():
            yield Step(name, f"python {readme.ROOT}/docs/examples/{name} {arguments}")
        yield Step("notebook.ipynb", f"cp {readme.ROOT}/docs/examples/notebook.ipynb .\n{_python(_NOTEBOOK)}")


def _commands() -> str:
    """On the demo's videos, and with a job of one short epoch."""
    before = "ln -s demo/videos videos\nset -- videos/test/*/*\n"
    before += "for name in new-video a b talk; do cp $1 $name.mp4; shift; done\n"
    lines = []
    for line in readme.commands().splitlines():
        lines.append(line)
        if line.startswith("essp init "):
            lines.append(_python(_MAKE_SMALL))
    return before + "\n".join(lines)


def _python(code: str) -> str:
    return f"python - <<'END_OF_PYTHON'\n{textwrap.dedent(code)}\nEND_OF_PYTHON\n"

"""`essp.Loader` in PyTorch Lightning, accelerate, the Trainer of Hugging Face and notebooks: the very clips, once each.

The examples of the documents run as they stand, but for smaller batches and one decoder. What frameworks do with a
loader that they do not know (iterators that are never used, epochs that they count themselves, states that they save)
has a test each. Nothing of a loader outlives a test: the check for leaks sees the processes of the notebook's kernel,
too.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import essp
from essp.api import loader as loader_module
from essp.api.epochs import Epochs
from essp_common.job.position import Position
from essp_engine.loading.rendezvous import Rendezvous
from tests.flow.conftest import EXAMPLES, RunExample
from tests.harness.loops import loader
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S

pytestmark = [
    pytest.mark.lane("promises"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the frameworks, among themselves
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

Shown = list[tuple[int, list[int]]]
"""Epoch and indices of each training batch, in the order in which loops got them."""


@pytest.fixture(autouse=True)
def nothing_for_the_next_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Frameworks keep a thread that looks after progress bars, and log to the stream that was there when they came."""
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    yield
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).handlers.clear()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Fills while loops run."""
    batches: Shown = []
    original = loader_module.Loader._batch

    def batch(self: essp.Loader, prepared: Any) -> essp.Batch:
        made = original(self, prepared)
        if made.meta["split"][0] == "train":
            batches.append((made.meta["epoch"][0], made.meta["index"]))
        return made

    monkeypatch.setattr(loader_module.Loader, "_batch", batch)
    return batches


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loaders of examples have batches of 4 and one decoder, and networks few weights; loaders that frameworks keep are
    closed in the end."""
    made: list[essp.Loader] = []

    class Small(loader_module.Loader):
        def __init__(self, *positional: Any, **options: Any) -> None:
            super().__init__(*positional, **(options | {"batch_size": 4, "limits": essp.Limits(decoders=1)}))
            made.append(self)

    def network(num_classes: int) -> nn.Module:
        layers = (nn.Conv3d(3, 4, 3, stride=2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, num_classes))
        return nn.Sequential(*layers)

    monkeypatch.setattr(essp, "Loader", Small)
    monkeypatch.setattr("torchvision.models.video.mc3_18", network)
    yield
    for one in made:
        one.close()


def epoch(number: int, begin: int = 0) -> Shown:
    """The batches of an epoch of the small set, from a batch on."""
    return [(number, [0, 1, 2, 3]), (number, [4, 5, 6, 7]), (number, [8, 9, 10, 11])][begin:]


# --- PyTorch Lightning ---


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_example_of_lightning_resumes(catalog: Path, example: RunExample, shown: Shown) -> None:
    for epochs, more in (("1", ()), ("2", ("--resume", "lightning/last.ckpt"))):
        lines = example("lightning_module.py", str(catalog), "--epochs", epochs, "--size", "32", *more)
        assert lines[-1].endswith(f"after {epochs} epochs")
    assert shown == epoch(0) + epoch(1)


class Died(Exception):
    """In place of a kill."""


def fit(catalog: Path, folder: Path, die_at: int | None = None, resume: str | None = None) -> None:
    """Two epochs of Lightning, with a checkpoint after each step."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Network(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.steps = torch.nn.Linear(3, 2), 0

        def training_step(self, batch: essp.Batch, number: int) -> torch.Tensor:
            self.steps += 1
            if self.steps == die_at:
                raise Died
            return torch.nn.functional.cross_entropy(self.layer(batch.frames.float().mean((1, 2, 3))), batch.labels)

        def validation_step(self, batch: essp.Batch, number: int) -> None:
            self.log("clips", float(len(batch)), batch_size=len(batch), reduce_fx="sum")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-5)

    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, callbacks=[saving], enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=1,
    )  # fmt: skip
    with loader(catalog, clips_per_epoch=12) as train, loader(catalog, split="validation") as validation:
        trainer.fit(Network(), train, validation, ckpt_path=resume)
        assert trainer.callback_metrics["clips"] == 12, "the sanity check takes nothing away"


@pytest.mark.slow
def test_lightning_saves_where_the_loader_is(catalog: Path, tmp_path: Path, shown: Shown) -> None:
    """It makes an iterator before the first epoch that it throws away, and never asks for the end of an epoch."""
    with pytest.raises(Died):
        fit(catalog, tmp_path, die_at=6)
    assert shown == epoch(0) + epoch(1)
    for step, left in ((2, epoch(0, 2) + epoch(1)), (3, epoch(1)), (4, epoch(1, 1))):
        shown.clear()
        fit(catalog, tmp_path / "again", resume=str(tmp_path / f"step={step}.ckpt"))
        assert shown == left


class Counted(Epochs):
    """Epochs of four batches of nothing: what is tested is in which order they come."""

    _clips, _batch_size, _plan = 15, 4, 1

    def __init__(self) -> None:
        super().__init__(Rendezvous(rank=0, world_size=1), drop_last=False)

    def _take(self) -> Callable[[], None]:
        return lambda: None

    def _epoch_from(self, start: Position | None) -> Iterator[tuple[essp.Batch | None, int]]:
        assert start is not None
        for begin in range(start.index, self._clips, self._batch_size):
            end = min(self._clips, begin + self._batch_size)
            meta = {"place": [(start.phase_index, begin)] * (end - begin)}
            yield essp.Batch(torch.zeros(end - begin, 1), torch.zeros(end - begin), meta), end


def steps_until(last: int, folder: Path, resume: str | None = None, **more: Any) -> tuple[list[Any], str]:
    """Where each batch was that Lightning took up to that step, and the checkpoint that it saves by default."""
    import lightning

    class Network(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.places = torch.nn.Linear(1, 1), list[Any]()

        def training_step(self, batch: essp.Batch, number: int) -> torch.Tensor:
            self.places.append(batch.meta["place"][0])
            loss: torch.Tensor = self.layer(torch.ones(1, 1)).sum()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        max_steps=last, accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, **more,
    )  # fmt: skip
    network = Network()
    trainer.fit(network, Counted(), ckpt_path=resume)
    return network.places, trainer.checkpoint_callback.best_model_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "more"),
    [(1, {}), (4, {}), (6, {}), (3, {"accumulate_grad_batches": 2}), (5, {"limit_train_batches": 2})],
)
def test_lightning_goes_on_where_max_steps_ended_it(tmp_path: Path, stop: int, more: dict[str, Any]) -> None:
    """It counts the epoch that `max_steps` ends as a whole one, and after one that was whole takes a batch of the next
    and counts it, too."""
    whole, _ = steps_until(11, tmp_path / "whole", **more)
    first, checkpoint = steps_until(stop, tmp_path / "first", **more)
    then, _ = steps_until(11, tmp_path / "then", checkpoint, **more)
    assert first + then == whole


# --- accelerate ---


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_example_of_accelerate_resumes(catalog: Path, example: RunExample, shown: Shown) -> None:
    for epochs in ("1", "2"):
        lines = example("accelerate_loop.py", str(catalog), "--epochs", epochs, "--size", "32")
        assert [line.split(":")[0] for line in lines] == [f"epoch {epochs}"]
    assert shown == epoch(0) + epoch(1)


def test_accelerate_leaves_a_loader_as_it_is(catalog: Path, tmp_path: Path) -> None:
    """And refuses to lose its place where it was given in a DataLoader all the same."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    with loader(catalog) as clips:
        assert accelerator.prepare(clips) is clips
        wrapped = accelerator.prepare(DataLoader(clips, batch_size=None))
        assert [batch.meta["epoch"][0] for batch in wrapped] == [0, 0, 0]
        clips.load_state_dict({**clips.state_dict(), "epoch": 5, "clip": 4})
        with refused("epoch", "conflict"):
            next(iter(wrapped))


def test_accelerate_dispatches_batches_of_dictionaries(catalog: Path, shown: Shown) -> None:
    """As it does by default with a DataLoader of a loader, in one process."""
    from accelerate import Accelerator

    with loader(catalog).map(lambda batch: {"frames": batch.frames, "labels": batch.labels}) as clips:
        batches = list(Accelerator(cpu=True).prepare(DataLoader(clips, batch_size=None)))
    assert [batch["frames"].shape for batch in batches] == [(4, 4, 40, 40, 3), (4, 4, 40, 40, 3), (2, 4, 40, 40, 3)]
    assert [index for _, indices in shown for index in indices] == list(range(10))


# --- Hugging Face ---


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A video transformer of Hugging Face with hardly any weights."""
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    config = TimesformerConfig(image_size=32, patch_size=16, num_frames=4, hidden_size=8, num_hidden_layers=1,
                               num_attention_heads=2, intermediate_size=8, num_labels=2)  # fmt: skip
    TimesformerForVideoClassification(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_example_of_the_trainer_resumes_within_an_epoch(
    catalog: Path, tmp_path: Path, example: RunExample, shown: Shown, tiny_model: Path
) -> None:
    from transformers import Trainer

    step = Trainer.training_step
    steps = 0

    def dying(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise Died
        return step(self, *arguments, **options)

    command = (
        "hugging_face_trainer.py",
        str(catalog),
        "--model",
        str(tiny_model),
        "--epochs",
        "2",
        "--save-steps",
        "1",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", dying)
        with pytest.raises(Died):
            example(*command)
    assert shown == epoch(0)
    shown.clear()
    lines = example(*command)
    assert shown == epoch(0, 2) + epoch(1)
    assert sum("eval_loss" in line for line in lines) == 2
    assert json.loads((tmp_path / "hugging-face" / "checkpoint-6" / "trainer_state.json").read_text())["epoch"] == 2


@pytest.mark.slow
def test_the_trainer_takes_a_loader_as_a_data_set(
    catalog: Path, tmp_path: Path, shown: Shown, tiny_model: Path
) -> None:
    """With batches of one batch; it then finds its place by decoding what it has seen."""
    from transformers import AutoModelForVideoClassification, Trainer, TrainingArguments

    def inputs(batches: list[essp.Batch]) -> dict[str, torch.Tensor]:
        [batch] = batches
        return {"pixel_values": batch.frames.permute(0, 1, 4, 2, 3) / 255, "labels": batch.labels}

    arguments = TrainingArguments(
        str(tmp_path / "out"), num_train_epochs=1, per_device_train_batch_size=1, remove_unused_columns=False,
        report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no",
    )  # fmt: skip
    with loader(catalog, clip=essp.Clip(4, 2, 32), clips_per_epoch=12) as clips:
        model = AutoModelForVideoClassification.from_pretrained(tiny_model)
        trainer = Trainer(model, arguments, train_dataset=clips, data_collator=inputs)
        trainer.train()
    assert trainer.state.global_step == 3
    assert shown == epoch(0)


# --- a notebook ---

_INTERRUPT = "import os, signal; os.killpg(os.getpgrp(), signal.SIGINT)"
"""What the stop button does: the kernel and all that belongs to its group get SIGINT."""


@pytest.mark.processes
def test_the_notebook_runs_and_survives_interrupts_and_restarts(
    catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process that the kernel started ends with the cell that is interrupted, or with the kernel."""
    import nbformat
    from jupyter_core.utils import ensure_event_loop, run_sync
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(EXAMPLES.parents[1]), str(EXAMPLES.parents[1] / "services"))))
    os.symlink(catalog, tmp_path / "catalog.parquet")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    cells = notebook.cells
    [training] = [position for position, cell in enumerate(cells) if "optimizer.step()" in cell.source]
    client = NotebookClient(notebook, timeout=int(LONGEST_S), resources={"metadata": {"path": str(tmp_path)}})

    def run(source: str) -> str:
        """The cell's output, at the end of the notebook."""
        cells.append(nbformat.v4.new_code_cell(source))
        cell = client.execute_cell(cells[-1], len(cells) - 1)
        return "".join(output.get("text", "") for output in cell.outputs)

    children = "import pathlib; print(len(pathlib.Path('/proc/thread-self/children').read_text().split()))"
    with client.setup_kernel():
        for position, cell in enumerate(cells[:]):
            client.execute_cell(cell, position)
        assert "done: {'epoch': 1, 'clip': 0" in cells[training].outputs[0].text
        assert "of 12 validation clips" in cells[-1].outputs[0].text
        interrupted = cells[training].source.replace("        optimizer.step()", f"        {_INTERRUPT}")
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            run(interrupted)
        assert run(children).split() == ["0"]
        assert "done: {'epoch': 3, 'clip': 0" in run(cells[training].source), "epoch 1 was interrupted"
        run("batches = iter(loader); next(batches)")
        run_sync(client.km.restart_kernel)(now=True)
        run_sync(client.kc.wait_for_ready)()
        assert run(children).split() == ["0"]
    ensure_event_loop().close()


# --- on features ---


def test_the_example_of_features_writes_an_array_of_each_video(
    own_set: tuple[Path, Path], tmp_path: Path, example: RunExample
) -> None:
    _, catalog = own_set
    rows = essp.open_catalog(catalog).rows
    Path(str(rows[1].uri).removeprefix("file://")).write_bytes(b"no video")
    lines = example("export_features.py", str(catalog), "out", "--feature", "frame_diff", "--short-side", "32")
    assert len(lines) == len(rows)
    assert lines[1].startswith(f"{rows[1].id}: ")
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"{number:06}.npz" for number in range(len(rows)) if number != 1]
    with np.load(files[0]) as first:
        found = {name: first[name] for name in first.files}
    clip = essp.decode(rows[0], frames=16, short_side=32)
    np.testing.assert_array_equal(found["feature"], essp.compute_feature(clip, "frame_diff"))
    assert (found["video"], found["split"], found["label"]) == (rows[0].id, rows[0].split, rows[0].class_name)


@pytest.mark.usefixtures("small")
def test_the_example_of_a_linear_probe_learns(catalog: Path, example: RunExample) -> None:
    [line] = example("linear_probe.py", str(catalog), "--size", "32", "--clips", "12", "--steps", "500")
    assert line.startswith("validation ")
    assert float(line.rpartition(" ")[2]) < 0.5, "a line that memorises 12 clips is not a better than chance"


@pytest.mark.usefixtures("small")
def test_the_example_of_flow_resumes(catalog: Path, tmp_path: Path, example: RunExample) -> None:
    for epochs in ("1", "2"):
        [line] = example("flow.py", str(catalog), "--size", "32", "--epochs", epochs)
        assert line.startswith(f"epoch {epochs}: loss ")
    assert torch.load(tmp_path / "flow.pt", weights_only=True)["loader"]["epoch"] == 2

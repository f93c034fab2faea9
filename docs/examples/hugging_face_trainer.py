"""Fine-tune a Hugging Face video model with its Trainer; after a restart, it resumes with the very next clip.

python hugging_face_trainer.py catalog.parquet --model MCG-NJU/videomae-base
"""

import argparse
from pathlib import Path
from typing import Any

import essp
import torch
from transformers import AutoModelForVideoClassification, Trainer, TrainerCallback, TrainingArguments


def inputs(batch: essp.Batch) -> dict[str, torch.Tensor]:
    """The model's inputs: `(B, T, C, H, W)` floats, normalised as in its card, and labels."""
    return {"pixel_values": batch.frames.permute(0, 1, 4, 2, 3) / 127.5 - 1, "labels": batch.labels}


class ClipTrainer(Trainer):
    """Loaders are used unchanged: each already yields this rank's clips, in batches."""

    def get_train_dataloader(self) -> essp.Loader:
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset: essp.Loader | None = None) -> essp.Loader:
        return eval_dataset or self.eval_dataset


class KeepPlace(TrainerCallback):
    """Saves the loader's state last in each checkpoint: one without it was cut off by a kill."""

    def on_save(self, args: Any, state: Any, control: Any, train_dataloader: essp.Loader, **rest: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(train_dataloader.state_dict(), folder / "loader.partial")
            (folder / "loader.partial").rename(folder / "loader.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("--model", default="MCG-NJU/videomae-base")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--save-steps", type=int, default=100)
    options = parser.parse_args()
    # ignore_data_skip: the loader resumes from its own state, without decoding clips again
    arguments = TrainingArguments("hugging-face", num_train_epochs=options.epochs, save_steps=options.save_steps,
                                  eval_strategy="epoch", report_to=[], ignore_data_skip=True)  # fmt: skip
    classes = essp.open_catalog(options.catalog).classes
    model = AutoModelForVideoClassification.from_pretrained(options.model, num_labels=len(classes))
    clip = essp.Clip(frames=model.config.num_frames, stride=4, size=model.config.image_size)
    sampling = essp.Sampling(kind="pooled", clips_per_visit=4)
    clips = essp.Loader(options.catalog, clip=clip, batch_size=8, sampling=sampling, drop_last=True).map(inputs)
    validation = essp.Loader(options.catalog, split="validation", clip=clip, batch_size=8).map(inputs)
    states = Path("hugging-face").glob("checkpoint-*/loader.pt")
    if state := max(states, key=lambda path: int(path.parent.name.rpartition("-")[2]), default=None):
        clips.load_state_dict(torch.load(state))
    trainer = ClipTrainer(model, arguments, train_dataset=clips, eval_dataset=validation, callbacks=[KeepPlace()])
    trainer.train(resume_from_checkpoint=str(state.parent) if state else None)

"""Train with PyTorch Lightning. Its checkpoints contain the loader's state: training resumes with the very next clip.

python lightning_module.py catalog.parquet --resume lightning/last.ckpt
"""

import argparse

import essp
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional
from torchvision.models.video import mc3_18


class Clips(lightning.LightningDataModule):
    def __init__(self, catalog: str, clip: essp.Clip, batch_size: int) -> None:
        super().__init__()
        self.options = {"catalog": catalog, "clip": clip, "batch_size": batch_size}

    def train_dataloader(self) -> essp.Loader:  # created here: now torch knows the rank and the number of ranks
        sampling = essp.Sampling(kind="pooled", clips_per_visit=4)
        return essp.Loader(**self.options, sampling=sampling, drop_last=True)

    def val_dataloader(self) -> essp.Loader:
        return essp.Loader(**self.options, split="validation")


class Network(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = mc3_18(num_classes=classes)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:  # (B, T, H, W, C) uint8, on the device
        return self.network(frames.permute(0, 4, 1, 2, 3) / 127.5 - 1)

    def training_step(self, batch: essp.Batch, number: int) -> torch.Tensor:
        return functional.cross_entropy(self(batch.frames), batch.labels)

    def validation_step(self, batch: essp.Batch, number: int) -> None:
        right = (self(batch.frames).argmax(1) == batch.labels).float().mean()
        self.log("accuracy", right, batch_size=len(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--resume", help="a checkpoint of Lightning")
    options = parser.parse_args()
    network = Network(len(essp.open_catalog(options.catalog).classes))
    clips = Clips(options.catalog, essp.Clip(frames=8, stride=2, size=options.size), batch_size=8)
    saving = ModelCheckpoint("lightning", every_n_train_steps=100, save_last=True)
    trainer = lightning.Trainer(max_epochs=options.epochs, callbacks=[saving], logger=False)
    trainer.fit(network, clips, ckpt_path=options.resume)
    print(f"accuracy {trainer.callback_metrics['accuracy']:.1%} after {trainer.current_epoch} epochs")

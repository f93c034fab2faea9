"""Train with accelerate, on one or several processes; after a kill, it resumes with the very next clip.

accelerate launch accelerate_loop.py catalog.parquet
"""

import argparse
from pathlib import Path

import essp
import torch
from accelerate import Accelerator
from torch.nn import functional
from torchvision.models.video import mc3_18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("catalog")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--state", type=Path, default=Path("accelerate-state"))
    options = parser.parse_args()

    accelerator = Accelerator()
    clips = {"catalog": options.catalog, "clip": essp.Clip(8, 2, options.size), "batch_size": 8}
    sampling = essp.Sampling(kind="pooled", clips_per_visit=4)
    # The loader itself, not in a DataLoader: it yields this rank's share, on its device, unchanged.
    loader = essp.Loader(**clips, sampling=sampling, drop_last=True, device=accelerator.device)
    validation = essp.Loader(**clips, split="validation", device=accelerator.device)
    network = mc3_18(num_classes=len(loader.classes))
    optimizer = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    network, optimizer = accelerator.prepare(network, optimizer)
    accelerator.register_for_checkpointing(loader)  # `save_state` and `load_state` now include it
    if options.state.exists():
        accelerator.load_state(str(options.state))

    for epoch in range(loader.epoch, options.epochs):
        network.train()
        for batch in loader:
            scores = network(batch.frames.permute(0, 4, 1, 2, 3) / 127.5 - 1)
            accelerator.backward(functional.cross_entropy(scores, batch.labels.to(accelerator.device)))
            optimizer.step()
            optimizer.zero_grad()
        accelerator.save_state(str(options.state))
        network.eval()
        counts = torch.zeros(2, device=accelerator.device)
        with torch.inference_mode():
            for batch in validation:
                found = accelerator.unwrap_model(network)(batch.frames.permute(0, 4, 1, 2, 3) / 127.5 - 1).argmax(1)
                counts += torch.tensor([(found.cpu() == batch.labels).sum(), len(batch)], device=accelerator.device)
        right, shown = accelerator.reduce(counts).tolist()
        accelerator.print(f"epoch {epoch + 1}: validation {right / shown:.1%} of {shown:.0f} clips")


if __name__ == "__main__":
    main()

"""Fine-tune a 3D network of torchvision on the clips of a catalog, on one or several ranks; after a kill, it resumes.

essp catalog build videos --out catalog.parquet
python finetune_3d.py catalog.parquet
torchrun --nproc-per-node 2 finetune_3d.py catalog.parquet
"""

import argparse
import os
from pathlib import Path

import essp
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.models.video import mc3_18

MEAN, STD = (0.432, 0.395, 0.376), (0.228, 0.221, 0.217)


def network_input(frames: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`(B, T, H, W, C)` uint8 -> `(B, C, T, H, W)` float32, normalised on the device."""
    clips = frames.to(device, non_blocking=True).permute(0, 4, 1, 2, 3).float() / 255
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1, 1) for values in (MEAN, STD))
    return (clips - mean) / std


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("catalog")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--checkpoint", type=Path, default=Path("finetune_3d.pt"))
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    several = "RANK" in os.environ
    if several:
        distributed.init_process_group("nccl" if cuda else "gloo")
    first = not several or distributed.get_rank() == 0

    clip = essp.Clip(frames=options.frames, stride=2, size=options.size)
    sampling = essp.Sampling(kind="pooled", clips_per_visit=4)
    loader = essp.Loader(
        options.catalog, clip=clip, batch_size=options.batch_size, sampling=sampling, drop_last=True, device=device
    )
    validation = essp.Loader(options.catalog, split="validation", clip=clip, batch_size=options.batch_size)

    network = mc3_18(num_classes=len(loader.classes)).to(device)
    model: nn.Module = DistributedDataParallel(network) if several else network
    optimizer = torch.optim.SGD(network.parameters(), options.lr, momentum=0.9)
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(saved["network"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    for epoch in range(loader.epoch, options.epochs):
        model.train()
        for step, batch in enumerate(loader):
            loss = nn.functional.cross_entropy(model(network_input(batch.frames, device)), batch.labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if first and step % 100 == 99:
                save(options.checkpoint, network, optimizer, loader)
        if first:
            save(options.checkpoint, network, optimizer, loader)
        model.eval()
        counts = torch.zeros(2, device=device)
        with torch.inference_mode():
            for batch in validation:
                found = network(network_input(batch.frames, device)).argmax(1).cpu()
                counts += torch.tensor([(found == batch.labels).sum(), len(batch)], device=device)
        if several:
            distributed.all_reduce(counts)
        right, clips = counts.tolist()
        if first:
            print(f"epoch {epoch + 1}: validation {right / clips:.1%} of {clips:.0f} clips")
    if several:
        distributed.destroy_process_group()


def save(path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, loader: essp.Loader) -> None:
    """Weights and the loop's state, together; a kill leaves the old file or the new one."""
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


if __name__ == "__main__":
    main()

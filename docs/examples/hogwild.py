"""Hogwild: two processes train one network without locks, on one loader. Each batch goes to one of them.

essp records build images/ --out data/images --encode raw --size 32
python hogwild.py data/images
"""

import argparse

import essp
import torch
from torch import multiprocessing, nn


def network(classes: int) -> nn.Module:
    """LeNet for images of 32x32."""
    features = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    layers = (nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes))
    return nn.Sequential(*features, *layers)


def pixels(batch: essp.Batch) -> torch.Tensor:
    """`(B, 1, H, W, C)` uint8 -> `(B, C, H, W)` float32."""
    return batch.frames[:, 0].permute(0, 3, 1, 2) / 127.5 - 1


def train(model: nn.Module, shared: essp.SharedRecords, epochs: int, rate: float) -> None:
    """One of the processes."""
    torch.set_num_threads(1)  # each process has a core
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)  # its momentum is this process's own
    for _ in range(epochs):
        for batch in shared:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels(batch)), batch.labels).backward()
            optimizer.step()  # changes the weights that all processes share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.01)
    options = parser.parse_args()

    loader = essp.Records(options.records, batch_size=options.batch_size, size=32)
    model = network(len(loader.classes))
    model.share_memory()  # before the processes start; otherwise each would train a copy
    context = multiprocessing.get_context("fork")  # with a GPU: "spawn"
    with loader.share(processes=options.processes) as shared:
        arguments = (model, shared, options.epochs, options.rate)
        workers = [context.Process(target=train, args=arguments) for _ in range(options.processes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        print("a process has failed; the others have trained on its batches")

    right = count = 0
    with torch.inference_mode(), loader:
        for batch in loader:
            right += int((model(pixels(batch)).argmax(1) == batch.labels).sum())
            count += len(batch)
    print(f"{right / count:.1%} of {count} training images")


if __name__ == "__main__":
    main()

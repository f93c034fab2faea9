"""The API of the OneAccess paper, implemented with `essp.Records`. The paper's listing runs with another import.

    from essp import oneaccess as OneAccess

    data_store = OneAccess.store.Cifar10(
        input_data_folder="cifar-10-batches-bin", max_batches=1, batch_size=32, rel_sample_size=1000, max_samples=1,
        transform=[],
    )
    data_store.initialize()
    data_loader = OneAccess.load.DataLoader(data_store, epochs=1)
    for i in range(data_loader.num_batches):
        images, labels = data_loader.get_next_batch()

This is a thin layer over `essp.Records`, which new code should use instead. docs/oneaccess.md lists the differences
from the authors' program.
"""

from essp.oneaccess import load, store

__all__ = ["load", "store"]

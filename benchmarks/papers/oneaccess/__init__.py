"""Repeats the experiments of the OneAccess paper: docs/papers/oneaccess.md.

parts.py         the parts of the page docs/papers/oneaccess.md
pictures.py      CIFAR-10 and many distinct photographs, in the layouts that loaders want
step_times.py    Tables 1 to 4: waiting and computing
building.py      the time to build the intermediate representation, and the size of its files
samples.py       Figures 7 and 10: samples by size
epochs.py        Tables 5 and 7: epochs, of ESSP and of other loaders
tf_data.py       epochs of tf.data, in an environment of its own
sharing.py       Table 6: Hogwild
over_memory.py   images that are larger than memory, over a disk and S3
limited.py       a limit on memory, page cache included
"""

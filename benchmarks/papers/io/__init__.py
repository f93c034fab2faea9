"""Repeats the experiments of the paper on I/O workloads: docs/papers/io.md.

parts.py      the parts of the page docs/papers/io.md
images.py     as many and as large images as the paper's
reading.py    images per second: threads, devices, an object store, several processes
training.py   training that reads images: prefetch, batch sizes, bytes over time
writing.py    writing: the bound, checkpoints on several devices, bytes over time
"""

"""Repeats the experiments of the papers behind ESSP: `python -m benchmarks.papers NAME`.

__main__.py      the command
study.py         parts and steps, and the JSON file of each part, from which a run is resumed
document.py      tables and figures of a page, drawn from these files alone
machine.py       where something was measured, and processor time with child processes

essp_paper.py    the parts of the page docs/papers/essp.md
extracting.py    extracting first against streaming: the traditional pipeline and a job on the same videos
traditional.py   the traditional pipeline: JPEG files of frames and flow, and a DataLoader over them
storage.py       disk space and time to extract a published data set, by `essp plan --against extract`
per_frame.py     its Table 4: decoding, flow and network of one frame
scaling.py       its Table 5: ranks and decoders, measured and simulated
hand_over.py     several cache nodes, and frames that are sent without a cache
links.py         links of a given rate, and a Redis Cluster behind them
folds.py         its Tables 2 and 3 as a protocol, on folds of a small real set
shares.py        ranks that move by validation loss

oneaccess_paper.py  the parts of the page docs/papers/oneaccess.md
pictures.py      CIFAR-10 and many distinct photographs, in the layouts that loaders want
step_times.py    Tables 1 to 4: waiting and computing
building.py      the time to build the intermediate representation, and the size of its files
samples.py       Figures 7 and 10: samples by size
epochs.py        Tables 5 and 7: epochs, of ESSP and of other loaders
tf_data.py       epochs of tf.data, in an environment of its own
sharing.py       Table 6: Hogwild
over_memory.py   images that are larger than memory, over a disk and S3
limited.py       a limit on memory, page cache included

check_qzp.py            the parts of the page docs/papers/check-qzp.md
checkpoint_ways.py      the combinations of Q, Z and P, and the loops that are saved
checkpoint_waits.py     how long training waits for a checkpoint
checkpoint_stages.py    snapshot, quantisation, gzip, writing
checkpoint_training.py  whole training runs, and the bytes that they write

io.py            the parts of the page docs/papers/io.md
io_images.py     as many and as large images as the paper's
io_reading.py    images per second: threads, devices, an object store, several processes
io_training.py   training that reads images: prefetch, batch sizes, bytes over time
io_writing.py    writing: the bound, checkpoints on several devices, bytes over time
"""

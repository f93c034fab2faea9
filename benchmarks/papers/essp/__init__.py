"""Repeats the experiments of ESSP's own paper: docs/papers/essp.md.

parts.py         the parts of the page docs/papers/essp.md
extracting.py    extracting first against streaming: the traditional pipeline and a job on the same videos
traditional.py   the traditional pipeline: JPEG files of frames and flow, and a DataLoader over them
storage.py       disk space and time to extract a published data set, by `essp plan --against extract`
per_frame.py     its Table 4: decoding, flow and network of one frame
scaling.py       its Table 5: ranks and decoders, measured and simulated
hand_over.py     several cache nodes, and frames that are sent without a cache
links.py         links of a given rate, and a Redis Cluster behind them
folds.py         its Tables 2 and 3 as a protocol, on folds of a small real set
shares.py        ranks that move by validation loss
"""

"""Data sets of records (`essp_common/records/`): made from what people have, and read for a training loop.

`sources.py`: folders, lists and archives of images. `build.py`: a version of a data set from one of them. `pieces.py`:
the records of an epoch in memory, ahead of the loop. `ring.py`: batches of one loader, for several processes.
"""

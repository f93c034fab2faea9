"""Data sets of records (`essp_common/records/`): built from the user's images, and read for a training loop.

`sources.py`: folders, lists and archives of images. `build.py`: builds a version of a data set from one of them.
`pieces.py`: the records of an epoch in memory, ahead of the loop. `ring.py`: batches of one loader, for several
processes.
"""

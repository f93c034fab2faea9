"""Checkpoints of a training: when, what, and where to.

interval.py          when the next one is due by `checkpoint.overhead`; session.py: by `checkpoint.every`
checkpointer.py      begins, retries and settles a save, and commits the messages that it covers
state_memory.py      the copy of the state that is being saved
state_packing.py     from that copy to files, in a thread; `packing_process.py`: in a child, `packing_child.py`
delta_packer.py      rounded, compressed, or as differences
save_queue.py        the saves that are on their way: burst buffer, then the store
checkpoint_store.py  the files of a training in the job's output
owner_watch.py       whether this process still owns its training
"""

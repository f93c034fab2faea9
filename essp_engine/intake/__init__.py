"""Intake: a consumer's clips from bus and cache, in the order of the plan.

ordered.py          the entrance: messages in, clips out in order, commits once a clip is done with
reorder_buffer.py   which clip is next when clips arrive in any order, or one is late: pure
reports.py          what is reported to the master: clips that are missing for too long, and those done with
fetching.py         clips are fetched ahead by threads, and taken one by one
fetch_processes.py  the same by child processes, on machines with many cores; `fetch_child.py` is the child
wanted.py           reads only the frames of a stored clip that a stream uses
"""

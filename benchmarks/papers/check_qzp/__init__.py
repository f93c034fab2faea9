"""Repeats the experiments of the Check-QZP paper: docs/papers/check-qzp.md.

parts.py      the parts of the page docs/papers/check-qzp.md
ways.py       the combinations of Q, Z and P, and the loops that are saved
waits.py      how long training waits for a checkpoint
stages.py     snapshot, quantisation, gzip, writing
training.py   whole training runs, and the bytes that they write
"""

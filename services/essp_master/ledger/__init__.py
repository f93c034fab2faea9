"""The ledger of a job: which clips to make, who has yet to train on them, and what the budget allows.

It decides without I/O, without a clock and without chance. `ledger.py` is the entrance: events go in, instructions come
out, and one message holds its whole state.
"""

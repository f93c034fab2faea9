"""The ledger of a job: which clips to make, which consumers have yet to train on them, and what the budget allows.

It decides without I/O, clocks or randomness. `ledger.py` is the entrance: events go in, instructions come out, and one
message contains its whole state.
"""

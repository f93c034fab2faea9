"""The ledger of a job: which clips to make, which consumers have yet to train on them, and what the budget allows.

It decides without I/O, clocks or randomness.

ledger.py       the entrance: events in, instructions out; skips, replaces or fails a clip that cannot be made
states.py       the states of a clip, as a table
plain.py        the clips to which nothing unusual has happened: nearly all
outstanding.py  clips that were issued and are not done with, and their bytes against the budget
issue_order.py  the order of issue
issuing.py      what is issued next
lost_bytes.py   whether lost bytes are made again, and for whom
batches.py      reports about many clips at once
consumers.py    what consumers report about their position
consumption.py  which clips a consumer is done with
stragglers.py   consumers that lag behind get their clips later
closing.py      the end of a clip
books.py        the state that these parts share
config.py       what it has to know of its job
"""

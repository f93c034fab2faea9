"""What is to be made, who has yet to train on it, and what room there is: decided with no I/O, clock or chance.

`ledger.py` is the entrance: events in, instructions out, and its whole state as one message.
"""

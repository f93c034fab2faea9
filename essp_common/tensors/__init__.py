"""Tensors in few bytes: a file of arrays, exact or quantised, compressed, complete or as the difference to another
file.

Needs only NumPy and zstandard. `packed.py` is the entry point.
"""

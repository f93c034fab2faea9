"""Tensors in few bytes: a file of arrays, exact or quantised, compressed, alone or as the difference to another file.

Needs NumPy and zstandard alone. `packed.py` is the entrance.
"""

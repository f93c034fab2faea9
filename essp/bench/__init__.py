"""Benchmarks of reading, training and saving on the machine and the stores of a user (`essp bench`)."""

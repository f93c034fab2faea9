"""Checkpoints and models of jobs, for people: what there is, whether it is whole, what changed, and smaller copies."""

"""Pools: how many workers of each kind run, and who decides it.

load.py         what each pool did lately, from the jobs and the workers' heartbeats
autoscaler.py   how many workers each pool should have, and why: pure
port.py         what a pool driver does; `processes.py`, `kubernetes.py`, `advice.py` are the drivers
reconciler.py   the loop: load in, decisions out, differences repaired
"""

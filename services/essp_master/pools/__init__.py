"""Pools: how many workers of each kind run, and who decides it.

load.py         what each pool did lately, from the jobs and the workers' heartbeats
autoscaler.py   how many workers each pool should have, and why: pure
port.py         what a pool driver does; `processes.py`, `kubernetes.py`, `advice.py` are the drivers
view.py         for `kubernetes.py`: what there is in the cluster, listed once and watched from then on
manifests.py    for `kubernetes.py`: what becomes of a registration, or of a training, as objects of the cluster
reconciler.py   the loop: load in, decisions out, differences repaired
"""

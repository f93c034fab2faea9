"""Pools: how many workers of each kind run.

load.py         what each pool did lately, from the demand of jobs and the workers' heartbeats
usage.py        what the workers of each pool use, for users
autoscaler.py   how many workers each pool should have, and why: pure
rules.py        bounds and fixed sizes that users gave to pools: kept for the next master
commands.py     the command that starts a worker of a pool
port.py         what a pool driver does; `processes.py`, `kubernetes.py`, `observe_only.py` are the drivers
informer.py     for `kubernetes.py`: the objects of the cluster, listed once and watched from then on
manifests.py    for `kubernetes.py`: registrations and trainers as objects of the cluster
reconciler.py   the loop: load in, decisions out, differences repaired
"""

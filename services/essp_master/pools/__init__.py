"""Pools: how many workers of each kind run.

autoscaler.py       how many workers each pool should have, and why: pure
load.py             its input: what each pool did lately, from the demand of jobs and the workers' heartbeats
worker_registry.py  which workers are up, and how busy, from their heartbeats
pool_watch.py       detects pools that cannot work
usage.py            what the workers of each pool use, for users
gpus.py             divides GPUs among trainers; `trainer_ranks.py`: ranks, after each epoch
rules.py            bounds and fixed sizes that users gave to pools; `rule_book.py`: as last read from the store
pool_events.py      what was done to pools, for users, also under earlier masters
commands.py         the command that starts a worker of a pool
port.py             what a pool driver does; `processes.py`, `kubernetes.py`, `observe_only.py` are the drivers
informer.py         for `kubernetes.py`: the objects of the cluster, listed once and watched from then on
manifests.py        for `kubernetes.py`: registrations and trainers as objects of the cluster
pod_trouble.py      for `kubernetes.py`: why a pool has fewer workers than requested
reconciler.py       the loop: load in, decisions out, differences repaired
"""

"""Torture: random faults on a real Slurm under a stream of small jobs, and what must hold whatever happens.

``make torture ROUNDS=200 SEED=1`` or ``python -m tests.cluster.torture``. Every choice comes from one seed, so that a run can
be repeated as far as Slurm's timing allows.

| file | what it knows |
|---|---|
| ``site.py``, ``shim.c`` | the cluster with disks that can be filled and a watchdog whose clock and death are ours to set |
| ``workload.py`` | the jobs, and the ledger that each of their attempts writes |
| ``history.py`` | what was done to whom and when (deeds), what was seen of jobs and nodes |
| ``troubles.py`` | the kinds of trouble, one function each; ``TROUBLES`` is the list |
| ``operator.py`` | the person who repairs nodes and gives them back |
| ``judgement.py`` | the invariants; pure |
| ``campaign.py``, ``report.py`` | rounds, looks, the end; the table and the story of each violation |
"""

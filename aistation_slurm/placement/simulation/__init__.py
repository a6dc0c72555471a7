"""Placement policies against a trace of jobs: an event simulator of slurmctld 22.05's scheduling of whole nodes.

``machine`` picks nodes as select/cons_tres does, ``backfill`` plans as sched/backfill does, ``engine`` lets time pass, ``policy``
says what AIStation (or nobody) does to jobs, ``synthetic`` makes traces, ``traces`` read them, ``figures`` measure, ``report`` and
``charts`` show.
"""

"""AIStation for Slurm: gate, place, watch, recover and show for GPU training jobs.

This file stays empty of imports: the prolog's passing path imports below it with the standard library only, and
every import costs the start of a job.
"""

__version__ = "0.1.0"

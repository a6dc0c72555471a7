"""``aistation doctor``: is this site's Slurm configured so that AIStation works, and does no harm?

``collect`` reads files and asks the daemons, the rules judge what it found (pure), ``cli/doctor.py`` prints.
"""

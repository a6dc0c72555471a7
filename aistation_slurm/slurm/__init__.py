"""The only code that talks to Slurm; version differences live here and nowhere else."""

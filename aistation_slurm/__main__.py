"""``python -m aistation_slurm`` is the same program as ``aistation``."""

from aistation_slurm.cli import main

if __name__ == "__main__":
    main()

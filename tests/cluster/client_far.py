"""Runs on a host of the test cluster: answers calls of a SlurmClient, one line a call, one line an answer.

``client_far.py json|text|pyslurm``; lines are base64 of pickles: (method, arguments, keywords) -> (True, value) or (False,
error). The real backend thus runs where Slurm's commands, its configuration and munge are.
"""

from __future__ import annotations

import base64
import pickle
import sys

from aistation_slurm.config import Config, Slurm
from aistation_slurm.errors import AistationError
from aistation_slurm.slurm import connect

NO_JSON = "/shared/nojson"
"""Holds a squeue and a sinfo of a build without serializer/json."""
TIMEOUT_S = 25.0


def main() -> None:
    form = sys.argv[1]
    if form == "pyslurm":
        settings = Slurm(backend="pyslurm", timeout_s=TIMEOUT_S)
    else:
        settings = Slurm(bin_dir=NO_JSON if form == "text" else "/usr/bin", backend="cli", timeout_s=TIMEOUT_S)
    client = connect(Config(slurm=settings))
    for line in sys.stdin:
        method, arguments, keywords = pickle.loads(base64.b64decode(line))
        try:
            answer = (True, getattr(client, method)(*arguments, **keywords))
        except AistationError as exc:
            answer = (False, exc)
        sys.stdout.write(base64.b64encode(pickle.dumps(answer)).decode("ascii") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

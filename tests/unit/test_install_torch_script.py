"""scripts/install-torch.sh, as far as it goes without fetching anything."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SCRIPT = REPO / "scripts" / "install-torch.sh"


def test_without_python_it_says_what_to_do() -> None:
    env = {**os.environ, "PYTHON": "/nowhere/python3"}
    result = subprocess.run(["sh", str(SCRIPT)], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("install-torch: /nowhere/python3 is missing or has no venv. Install Python")
    assert result.stderr.count("\n") == 1


def test_it_installs_what_the_extra_of_pyproject_names() -> None:
    (command,) = re.findall(r"^wanted=\$\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)
    words = subprocess.run(["sh", "-c", command], cwd=REPO, capture_output=True, text=True, timeout=60, check=True)
    assert [re.split("[<>=]", word)[0] for word in words.stdout.split()] == ["torch", "safetensors", "numpy"]

"""The demo is the main job of a newcomer: it must work, and say what people and scripts look for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


def test_the_demo_recovers_and_shows_it(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    timeline = (tmp_path / "aistation" / "timeline.txt").read_text()
    assert re.search(r"detected and drained\s+gpu\d: ais:gpu\.", timeline)
    assert re.search(r"running again\s+on gpu\S+ \d+\.\d s", timeline)
    assert re.search(r"resumed .*checkpoint-\d+", timeline)
    assert re.search(r"completed\s+step 60/60", timeline)
    assert (tmp_path / "aistation" / "loss.png").read_bytes().startswith(b"\x89PNG")
    attempts = {line.split(",")[0] for line in (tmp_path / "aistation" / "loss.csv").read_text().splitlines()[1:]}
    assert attempts == {"0", "1"}

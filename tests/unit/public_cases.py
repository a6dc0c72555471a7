"""Loads tests/cases/*.yaml: inputs of public bug reports with the values that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["case"]

FOLDER = Path(__file__).resolve().parents[1] / "cases"


def case(number: str) -> dict[str, Any]:
    """One case by its number, ``case("082")["input"]``."""
    (path,) = FOLDER.glob(f"{number}-*.yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found

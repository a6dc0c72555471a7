"""Kinds of values that keys of aistation.toml have."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Mode = Literal["enforce", "observe"]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Bounded = Annotated[float, msgspec.Meta(gt=0, le=604800)]
"""Seconds, a week at most: a deadline that has to end."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]

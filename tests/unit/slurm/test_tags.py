"""The suite's texts in a job's own fields."""

from __future__ import annotations

from aistation_slurm.slurm import tags


def test_a_note_that_a_user_forged_cannot_steer_a_terminal() -> None:
    assert tags.read_note("[ais: done\x1b[31m\nred]") == "done?[31m?red"

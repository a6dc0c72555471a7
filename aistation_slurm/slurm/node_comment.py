"""A node's Comment in the text that ``scontrol show node`` prints (the form of several lines). Standard library only."""

from __future__ import annotations

import re

__all__ = ["shown_comment"]

_VALUE = re.compile(r"^   Comment=(.*?)(?=\n   [A-Z][A-Za-z]*=|\s*\Z)", re.MULTILINE | re.DOTALL)


def shown_comment(text: str) -> str:
    """Comment of the one node in ``text``, blanks, ``=`` and line ends in it included; "" where it has none.

    Slurm prints it raw, 22.05 as the last field, later versions before Extra, InstanceId, ReservationName and others
    (slurm_sprint_node_table in src/api/node_info.c and src/scontrol/info_node.c).
    """
    match = _VALUE.search(text)
    found = match.group(1) if match else ""
    return "" if found == "(null)" else found

"""Becoming a job's user in a child process: root never opens, follows or creates anything at a path that a user chose."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

__all__ = ["Credentials", "of_process"]


@dataclass(frozen=True)
class Credentials:
    """uid, primary gid and supplementary groups of a user; never root's."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def become(self) -> None:
        """For good, in a child. Raises PermissionError where it cannot be, or would be root; nothing may go on then.

        The kernel makes the process undumpable with the change, so the user cannot read what it still holds of its parent.
        """
        if self.uid <= 0:
            raise PermissionError(f"uid {self.uid} is nobody to become")
        if os.geteuid() == 0:
            os.setgroups(self.groups)
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        if os.getresuid() != (self.uid,) * 3:
            raise PermissionError(f"cannot become uid {self.uid}: not root")
        os.umask(0o077)


def of_process(pid: int, uid: int, proc: str = "/proc") -> Optional[Credentials]:
    """Those that Slurm gave to a process of this user's job, without asking a directory service that may hang.

    None where the process is gone or does not run with plain ``uid`` (one that became root through a setuid program).
    """
    try:
        text = Path(f"{proc}/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = dict(re.findall(r"^(\w+):[ \t]*(.*)$", text, re.MULTILINE))
    uids, gids = fields.get("Uid", "").split(), fields.get("Gid", "").split()
    if len(uids) != 4 or set(uids) != {str(uid)} or len(gids) != 4 or len(set(gids)) != 1:
        return None
    return Credentials(uid, int(gids[0]), tuple(int(group) for group in fields.get("Groups", "").split()))

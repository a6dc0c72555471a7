"""The recovery journal: what was seen, decided and done, in SQLite (WAL) on a local disk.

An action is written as an intent before it is taken and marked done after; an intent without an end is looked up in Slurm
at the next step, not repeated blindly. Every method is one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.errors import JournalError
from aistation_slurm.recovery.attribution import Attempt

__all__ = ["Journal", "network_filesystem"]

SCHEMA = "1"
_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "fuse.sshfs",
        "afs",
        "wekafs",
        "9p",
    }
)
"""SQLite's locks and shared memory do not work on these (sqlite.org/wal.html)."""


def network_filesystem(path: Path) -> str:
    """Type of the network file system that holds ``path``; empty for a local one."""
    best, kind = -1, ""
    try:
        real = str(path.resolve())
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, mount, fstype, *_ = line.split()
            mount = mount.replace("\\040", " ")
            inside = real == mount or real.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= best:
                best, kind = len(mount), fstype
    except (OSError, ValueError):
        return ""
    return kind if kind in _NETWORK else ""


class Journal:
    """One open journal. Raises JournalError for whatever SQLite says, in words that name the file and the cure."""

    def __init__(self, path: Path, cluster: str, read_only: bool = False) -> None:
        self.path, self.cluster = path, cluster
        if read_only:
            if not path.exists():
                raise JournalError(f"{path}: no journal yet; the watchdog makes it when it first runs")
        else:
            self._prepare_folder()
        with self._translated():
            if read_only:
                self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5, isolation_level=None)
            else:
                self._db = sqlite3.connect(path, timeout=5, isolation_level=None)
                os.chmod(path, 0o600)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            self._db.row_factory = sqlite3.Row
            self._check_schema(read_only)

    def _prepare_folder(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as exc:
            raise JournalError(
                f"{self.path.parent}: cannot be made: {exc.strerror}; make it for the watchdog's user"
            ) from exc
        kind = network_filesystem(self.path.parent)
        if kind:
            raise JournalError(
                f"{self.path}: lies on {kind}, a network file system; set watchdog.journal to a local disk"
            )

    def _check_schema(self, read_only: bool) -> None:
        known = self._db.execute("SELECT name FROM sqlite_master WHERE name='meta'").fetchone()
        if known is None and not read_only:
            text = resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
            self._db.executescript(f"BEGIN IMMEDIATE;\n{text}\nCOMMIT;")
        row = self._db.execute("SELECT value FROM meta WHERE key='schema'").fetchone()
        if row is None or row[0] != SCHEMA:
            found = row[0] if row else "none"
            raise JournalError(
                f"{self.path}: schema {found}, this version writes {SCHEMA}; move it aside or update aistation"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise JournalError(f"{self.path}: {exc}; check the disk's free space and the file's owner") from exc

    def close(self) -> None:
        self._db.close()

    # ---- attempts

    def see_attempt(self, attempt: Attempt, *, restart_cnt: int = 0, user_id: int = -1, name: str = "") -> bool:
        """Note a running attempt; True the first time."""
        with self._translated():
            made = self._db.execute(
                "INSERT OR IGNORE INTO attempts (cluster, job_id, start_time, nodes, state, restart_cnt, user_id, name) "
                "VALUES (?,?,?,?,?,?,?,?)",
                (
                    self.cluster,
                    attempt.job_id,
                    attempt.start_time,
                    " ".join(attempt.nodes),
                    "running",
                    restart_cnt,
                    user_id,
                    name[:200],
                ),
            )
            return made.rowcount > 0

    def end_attempt(self, job_id: int, nodes: Sequence[str], time: float, exit_text: str, user_id: int) -> None:
        """An event says that the job's present attempt ended. One that was never seen running is made from the event."""
        with self._translated():
            row = self._last(job_id)
            if (
                row is not None
                and row["state"] == "running"
                and (not nodes or not row["nodes"] or set(nodes) == set(row["nodes"].split()))
            ):
                self._db.execute(
                    "UPDATE attempts SET state='ended', ended=?, exit=?, nodes=? WHERE cluster=? AND job_id=? AND start_time=?",
                    (time, exit_text, " ".join(nodes) or row["nodes"], self.cluster, job_id, row["start_time"]),
                )
            elif row is None or row["state"] == "restarted" or set(nodes) != set(row["nodes"].split()):
                self._db.execute(
                    "INSERT OR IGNORE INTO attempts (cluster, job_id, start_time, nodes, state, ended, exit, user_id) "
                    "VALUES (?,?,?,?,'ended',?,?,?)",
                    (self.cluster, job_id, int(time), " ".join(nodes), time, exit_text, user_id),
                )

    def mark(self, attempt: Attempt, **columns: Any) -> None:
        """Set columns of an attempt."""
        names = ", ".join(f"{key}=?" for key in columns)
        with self._translated():
            self._db.execute(
                f"UPDATE attempts SET {names} WHERE cluster=? AND job_id=? AND start_time=?",  # noqa: S608
                (*columns.values(), self.cluster, attempt.job_id, attempt.start_time),
            )

    def _last(self, job_id: int) -> Optional[sqlite3.Row]:
        row: Optional[sqlite3.Row] = self._db.execute(
            "SELECT * FROM attempts WHERE cluster=? AND job_id=? ORDER BY start_time DESC LIMIT 1",
            (self.cluster, job_id),
        ).fetchone()
        return row

    def last_attempt(self, job_id: int) -> Optional[tuple[Attempt, Optional[float], str]]:
        """The newest attempt, the time since which the job is calm, and the cause noted so far."""
        with self._translated():
            row = self._last(job_id)
        if row is None:
            return None
        attempt = Attempt(job_id, row["start_time"], tuple(row["nodes"].split()), row["ended"], row["state"])
        return attempt, row["calm_since"], row["cause"]

    def known_jobs(self) -> set[int]:
        """Jobs with an attempt that is not over."""
        with self._translated():
            rows = self._db.execute(
                "SELECT DISTINCT job_id FROM attempts WHERE cluster=? AND state!='done'", (self.cluster,)
            ).fetchall()
        return {row[0] for row in rows}

    # ---- actions

    def intend(self, attempt: Attempt, kind: str, time: float, detail: str) -> int:
        """Before an action; returns its id. One that is still open for the same attempt is taken up again."""
        with self._translated():
            row = self._db.execute(
                "SELECT id FROM actions WHERE cluster=? AND job_id=? AND start_time=? AND kind=? AND done IS NULL",
                (self.cluster, attempt.job_id, attempt.start_time, kind),
            ).fetchone()
            if row is not None:
                return int(row[0])
            made = self._db.execute(
                "INSERT INTO actions (cluster, job_id, start_time, kind, intended, detail) VALUES (?,?,?,?,?,?)",
                (self.cluster, attempt.job_id, attempt.start_time, kind, time, detail[:500]),
            )
            return int(made.lastrowid or 0)

    def done(self, action: int, time: float, outcome: str) -> None:
        """After it."""
        with self._translated():
            self._db.execute("UPDATE actions SET done=?, outcome=? WHERE id=?", (time, outcome[:500], action))

    def restarts(self, job_id: int) -> int:
        """How often this job was restarted by the watchdog."""
        with self._translated():
            row = self._db.execute(
                "SELECT COUNT(DISTINCT start_time) FROM actions WHERE cluster=? AND job_id=? AND outcome='done' "
                "AND kind IN ('start', 'release')",
                (self.cluster, job_id),
            ).fetchone()
        return int(row[0])

    # ---- incidents and reading

    def note(self, time: float, kind: str, text: str, *, node: str = "", job_id: int = 0) -> None:
        with self._translated():
            self._db.execute(
                "INSERT INTO incidents (time, kind, node, job_id, text) VALUES (?,?,?,?,?)",
                (time, kind, node, job_id, text[:1000]),
            )

    def incidents(self, since: float = 0.0, job_id: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Newest last."""
        with self._translated():
            rows = self._db.execute(
                "SELECT * FROM (SELECT * FROM incidents WHERE time>=? AND (?=0 OR job_id=?) ORDER BY id DESC LIMIT ?) ORDER BY id",
                (since, job_id, job_id, limit),
            ).fetchall()
        return [dict(row) for row in rows]

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        with self._translated():
            rows = self._db.execute("SELECT * FROM attempts WHERE job_id=? ORDER BY start_time", (job_id,)).fetchall()
        return [dict(row) for row in rows]

    def actions(self, job_id: int) -> list[dict[str, Any]]:
        with self._translated():
            rows = self._db.execute("SELECT * FROM actions WHERE job_id=? ORDER BY id", (job_id,)).fetchall()
        return [dict(row) for row in rows]

"""The recovery journal: what was seen, decided and done, in SQLite (WAL) on a local disk.

An action is written as an intent before it is taken and marked done after; an intent without an end is looked up in Slurm
at the next step, not repeated blindly. Every method is one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.errors import JournalError
from aistation_slurm.recovery.attribution import Attempt
from aistation_slurm.recovery.events import JobEnded
from aistation_slurm.recovery.local_disk import network_filesystem
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job

__all__ = ["Journal", "Record"]

SCHEMA = "2"
BUSY_S = 5.0
"""Wait for another process that holds the database (a reader of ``aistation incidents`` never does)."""
EVENTS_KEPT_S = 86400.0
SAME_END_S = 2.0
"""An event this much later than the end that was seen already still is of that end."""


@dataclass(frozen=True)
class Record:
    """An attempt with what the journal knows of it. state: running, ended, restarted (by us or anyone), done."""

    attempt: Attempt
    state: str
    calm_since: Optional[float] = None
    max_restarts: Optional[int] = None
    told: str = ""


class Journal:
    """One open journal. Raises JournalError for whatever SQLite says, in words that name the file and the cure."""

    def __init__(self, path: Path, cluster: str, read_only: bool = False) -> None:
        self.path, self.cluster = path, cluster
        with self._translated():
            if read_only:
                self._require_readable()
                self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
            else:
                self._prepare_file()
                self._db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
                self._db.execute("PRAGMA journal_mode=WAL")
                # FULL: what is committed survives a power cut, else a requeue could be repeated after it
                self._db.execute("PRAGMA synchronous=FULL")
            self._db.row_factory = sqlite3.Row
            self._check_schema(read_only)

    def _require_readable(self) -> None:
        """SQLite says the same "unable to open" for a missing file and for one that is somebody else's."""
        try:
            os.close(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise JournalError(f"{self.path}: no journal yet; the watchdog makes it when it first runs") from None
        except OSError as exc:
            raise JournalError(
                f"{self.path}: {exc.strerror}; it is for root and the watchdog's user (aistation explain JOB works for all)"
            ) from exc

    def _prepare_file(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as exc:
            raise JournalError(
                f"{self.path.parent}: cannot be made: {exc.strerror}; make it for the watchdog's user"
            ) from exc
        kind = network_filesystem(self.path.parent)
        if kind:
            raise JournalError(
                f"{self.path}: lies on {kind}, a network file system; set watchdog.journal to a local disk"
            )
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            raise JournalError(
                f"{self.path}: cannot be opened: {exc.strerror}; it has to belong to the watchdog's user"
            ) from exc

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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                # a full disk has rolled it back already
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _key(self, attempt: Attempt) -> tuple[str, int, int]:
        return self.cluster, attempt.job_id, attempt.start_time

    def close(self) -> None:
        self._db.close()

    # ---- attempts

    def see_attempt(self, attempt: Attempt, job: Job) -> bool:
        """Note a running attempt; True the first time. Older ones of the job are over then."""
        with self._transaction():
            made = self._db.execute(
                "INSERT OR IGNORE INTO attempts "
                "(cluster, job_id, start_time, seen, nodes, gres, state, restart_cnt, user_id, name) "
                "VALUES (?,?,?,1,?,?,'running',?,?,?)",
                (*self._key(attempt), *_texts(attempt), job.restart_cnt, job.user_id, job.name[:200]),
            )
            if made.rowcount < 1:
                return False
            self._db.execute(
                "UPDATE attempts SET state='restarted' WHERE cluster=? AND job_id=? AND start_time!=? "
                "AND state IN ('running', 'ended')",
                self._key(attempt),
            )
            text = f"attempt {job.restart_cnt} runs on {hostlist.fold(attempt.nodes)}"
            self._note(float(attempt.start_time), "started", text, "", attempt.job_id)
            return True

    def end_attempt(self, event: JobEnded) -> bool:
        """Take in one event, once: False, and nothing changes, for one whose file name is known already."""
        with self._transaction():
            name = event.path.name
            new = self._db.execute("INSERT OR IGNORE INTO events (name, time) VALUES (?,?)", (name, event.time))
            if new.rowcount < 1:
                return False
            self._db.execute("DELETE FROM events WHERE time<?", (event.time - EVENTS_KEPT_S,))
            self._note(event.time, "ended", f"ended on {hostlist.fold(event.nodes)}: {event.how}", "", event.job_id)
            user = -1 if event.user_id is None else event.user_id
            told = (user, event.max_restarts, event.restart_count or 0)
            row = self._last(event.job_id)
            if row is not None and self._is_end_of(row, event):
                self._db.execute(
                    "UPDATE attempts SET state=CASE state WHEN 'running' THEN 'ended' ELSE state END, "
                    "ended=COALESCE(ended, ?), exit=?, max_restarts=? WHERE cluster=? AND job_id=? AND start_time=?",
                    (event.time, event.how, event.max_restarts, self.cluster, event.job_id, row["start_time"]),
                )
            elif row is None or event.time >= row["start_time"]:
                self._db.execute(
                    "INSERT OR IGNORE INTO attempts "
                    "(cluster, job_id, start_time, seen, nodes, state, ended, exit, user_id, max_restarts, restart_cnt) "
                    "VALUES (?,?,?,0,?,'ended',?,?,?,?,?)",
                    (self.cluster, event.job_id, int(event.time), " ".join(event.nodes), event.time, event.how, *told),
                )
            return True

    @staticmethod
    def _is_end_of(row: sqlite3.Row, event: JobEnded) -> bool:
        """Whether the event tells the end of the attempt ``row``, and not of a later one that was too short to be seen."""
        # fewer nodes: Slurm has taken a dead one out already
        if event.time < row["start_time"] or not set(event.nodes) <= set(row["nodes"].split()):
            return False
        return row["ended"] is None or event.time <= row["ended"] + SAME_END_S

    def mark(self, attempt: Attempt, **columns: Any) -> None:
        """Set columns of an attempt."""
        names = ", ".join(f"{key}=?" for key in columns)
        with self._translated():
            self._db.execute(
                f"UPDATE attempts SET {names} WHERE cluster=? AND job_id=? AND start_time=?",  # noqa: S608
                (*columns.values(), *self._key(attempt)),
            )

    def tell(
        self, attempt: Attempt, told: str, cause: str, why: str, *, time: float, kind: str, node: str = ""
    ) -> None:
        """Write a judgement to the attempt and to the incidents, as one."""
        with self._transaction():
            self._db.execute(
                "UPDATE attempts SET told=?, cause=?, why=? WHERE cluster=? AND job_id=? AND start_time=?",
                (told, cause, why[:500], *self._key(attempt)),
            )
            self._note(time, kind, why, node, attempt.job_id)

    def _last(self, job_id: int) -> Optional[sqlite3.Row]:
        row: Optional[sqlite3.Row] = self._db.execute(
            "SELECT * FROM attempts WHERE cluster=? AND job_id=? ORDER BY rowid DESC LIMIT 1",
            (self.cluster, job_id),
        ).fetchone()
        return row

    def last(self, job_id: int) -> Optional[Record]:
        """The newest attempt of a job: the one noted last, since start times go back where the clock is set back."""
        with self._translated():
            row = self._last(job_id)
        if row is None:
            return None
        attempt = Attempt(
            job_id=job_id,
            start_time=row["start_time"],
            nodes=tuple(row["nodes"].split()),
            ended=row["ended"],
            gres=tuple(row["gres"].split()),
            seen=bool(row["seen"]),
        )
        return Record(attempt, row["state"], row["calm_since"], row["max_restarts"], row["told"])

    def open_jobs(self) -> set[int]:
        """Jobs with an attempt that is not over."""
        with self._translated():
            rows = self._db.execute(
                "SELECT DISTINCT job_id FROM attempts WHERE cluster=? AND state IN ('running', 'ended')",
                (self.cluster,),
            ).fetchall()
        return {row[0] for row in rows}

    def forget(self, job_id: int) -> None:
        """Slurm no longer has this job: nothing can be done for it."""
        with self._translated():
            self._db.execute(
                "UPDATE attempts SET state='done' WHERE cluster=? AND job_id=? AND state IN ('running', 'ended')",
                (self.cluster, job_id),
            )

    # ---- actions

    def intend(self, attempt: Attempt, kind: str, time: float, detail: str) -> int:
        """Before an action; returns its id. One that is still open for the same attempt is taken up again."""
        with self._transaction():
            row = self._open(attempt, kind)
            if row is not None:
                self._db.execute("UPDATE actions SET intended=? WHERE id=?", (time, row["id"]))
                return int(row["id"])
            made = self._db.execute(
                "INSERT INTO actions (cluster, job_id, start_time, kind, intended, detail) VALUES (?,?,?,?,?,?)",
                (self.cluster, attempt.job_id, attempt.start_time, kind, time, detail[:500]),
            )
            return int(made.lastrowid or 0)

    def _open(self, attempt: Attempt, kind: str) -> Optional[sqlite3.Row]:
        row: Optional[sqlite3.Row] = self._db.execute(
            "SELECT * FROM actions WHERE cluster=? AND job_id=? AND start_time=? AND kind=? AND done IS NULL",
            (*self._key(attempt), kind),
        ).fetchone()
        return row

    def open_since(self, attempt: Attempt, kind: str) -> Optional[float]:
        """When an action was intended that is not known to be done; None where there is no such."""
        with self._translated():
            row = self._open(attempt, kind)
        return None if row is None else float(row["intended"])

    def close_open(self, attempt: Attempt, kind: str, time: float, outcome: str) -> None:
        """End an open intent by what Slurm shows."""
        with self._translated():
            self._db.execute(
                "UPDATE actions SET done=?, outcome=? WHERE cluster=? AND job_id=? AND start_time=? AND kind=? "
                "AND done IS NULL",
                (time, outcome, *self._key(attempt), kind),
            )

    def done(self, action: int, attempt: Attempt, time: float, outcome: str, text: str, state: str = "") -> None:
        """After an action: its outcome, the attempt's new state where it has one, and an incident, as one."""
        with self._transaction():
            row = self._db.execute("SELECT kind FROM actions WHERE id=?", (action,)).fetchone()
            self._db.execute("UPDATE actions SET done=?, outcome=? WHERE id=?", (time, outcome[:500], action))
            if state:
                self._db.execute(
                    "UPDATE attempts SET state=? WHERE cluster=? AND job_id=? AND start_time=?",
                    (state, *self._key(attempt)),
                )
            self._note(time, row["kind"] if row else "action", text, "", attempt.job_id)

    def refusals(self, attempt: Attempt, kind: str) -> tuple[int, float]:
        """How often Slurm refused this action, and when last."""
        with self._translated():
            row = self._db.execute(
                "SELECT COUNT(*), COALESCE(MAX(done), 0) FROM actions WHERE cluster=? AND job_id=? AND start_time=? "
                "AND kind=? AND outcome LIKE 'refused%'",
                (*self._key(attempt), kind),
            ).fetchone()
        return int(row[0]), float(row[1])

    def restarts(self, job_id: int) -> int:
        """How often this job was restarted by the watchdog."""
        with self._translated():
            row = self._db.execute(
                "SELECT COUNT(DISTINCT start_time) FROM actions WHERE cluster=? AND job_id=? AND outcome LIKE 'done%' "
                "AND kind IN ('start', 'release')",
                (self.cluster, job_id),
            ).fetchone()
        return int(row[0])

    # ---- incidents and reading

    def note(self, time: float, kind: str, text: str, *, node: str = "", job_id: int = 0) -> None:
        with self._translated():
            self._note(time, kind, text, node, job_id)

    def _note(self, time: float, kind: str, text: str, node: str, job_id: int) -> None:
        self._db.execute(
            "INSERT INTO incidents (time, kind, node, job_id, text) VALUES (?,?,?,?,?)",
            (time, kind, node, job_id, text[:1000]),
        )

    def incidents(self, since: float = 0.0, job_id: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest ``limit``, newest last."""
        with self._translated():
            rows = self._db.execute(
                "SELECT * FROM (SELECT * FROM incidents WHERE time>=? AND (?=0 OR job_id=?) ORDER BY id DESC LIMIT ?) "
                "ORDER BY id",
                (since, job_id, job_id, limit),
            ).fetchall()
        return [dict(row) for row in rows]

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        """Oldest first."""
        with self._translated():
            rows = self._db.execute("SELECT * FROM attempts WHERE job_id=? ORDER BY start_time", (job_id,)).fetchall()
        return [dict(row) for row in rows]

    def actions(self, job_id: int) -> list[dict[str, Any]]:
        """Oldest first."""
        with self._translated():
            rows = self._db.execute("SELECT * FROM actions WHERE job_id=? ORDER BY id", (job_id,)).fetchall()
        return [dict(row) for row in rows]


def _texts(attempt: Attempt) -> tuple[str, str]:
    return " ".join(attempt.nodes), " ".join(attempt.gres)

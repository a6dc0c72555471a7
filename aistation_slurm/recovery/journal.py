"""The recovery journal: what was seen, decided and done, in SQLite (WAL) on a local disk.

An action is written as an intent before it is taken and marked done after; an intent without an end is looked up in Slurm
at the next step, not repeated blindly. Every method is one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from aistation_slurm.recovery.attribution import Attempt
from aistation_slurm.recovery.events import JobEnded
from aistation_slurm.recovery.journal_file import JournalFile
from aistation_slurm.recovery.past import PastAttempt
from aistation_slurm.slurm import hostlist
from aistation_slurm.slurm.client import Job

__all__ = ["NEW_JOB", "Journal", "Record"]

EVENTS_KEPT_S = 86400.0
EARLIER = "~"
"""In the cluster's name of what an earlier job with the same id left."""
NEW_JOB = "new_job"
"""Kind of the incident from which on the id is another job's."""
SAME_END_S = 2.0
"""An event this much later than the end that was seen already still is of that end."""


@dataclass(frozen=True)
class Record:
    """An attempt with what the journal knows of it. state: running, ended, restarted (by us or anyone), done.

    bad: nodes that it was taken from. restart_cnt: Slurm's count when it was seen. cause: of the last judgement.
    """

    attempt: Attempt
    state: str
    calm_since: Optional[float] = None
    max_restarts: Optional[int] = None
    told: str = ""
    bad: tuple[str, ...] = ()
    restart_cnt: int = 0
    cause: str = ""


class Journal(JournalFile):
    """One open journal of one cluster."""

    def __init__(self, path: Path, cluster: str, read_only: bool = False) -> None:
        super().__init__(path, read_only)
        self.cluster = cluster

    def _key(self, attempt: Attempt) -> tuple[str, int, int]:
        return self.cluster, attempt.job_id, attempt.start_time

    # ---- attempts

    def see_attempt(self, attempt: Attempt, job: Job) -> bool:
        """Note a running attempt; True the first time. Older ones of the job are over then."""
        with self.transaction():
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
        with self.transaction():
            name = event.path.name
            new = self._db.execute("INSERT OR IGNORE INTO events (name, time) VALUES (?,?)", (name, event.time))
            if new.rowcount < 1:
                return False
            self._db.execute("DELETE FROM events WHERE time<?", (event.time - EVENTS_KEPT_S,))
            # a requeued job's exit code is 0: that says nothing about its end
            how = f": {event.how}" if event.exit_code != 0 or event.exit_signal else ""
            self._note(event.time, "ended", f"ended on {hostlist.fold(event.nodes)}{how}", "", event.job_id)
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

    def adopt(self, attempt: Attempt, job: Job, time: float, text: str) -> None:
        """Note an attempt that nobody saw and no event told of, from what Slurm still shows of its end."""
        with self.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO attempts "
                "(cluster, job_id, start_time, seen, nodes, state, ended, user_id, name, restart_cnt) "
                "VALUES (?,?,?,?,?,'ended',?,?,?,?)",
                (
                    *self._key(attempt),
                    int(attempt.seen),
                    " ".join(attempt.nodes),
                    attempt.ended,
                    job.user_id,
                    job.name[:200],
                    max(job.restart_cnt - 1, 0),  # the job has been requeued since
                ),
            )
            self._note(time, "adopted", text, "", attempt.job_id)

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
        with self.translated():
            self._db.execute(
                f"UPDATE attempts SET {names} WHERE cluster=? AND job_id=? AND start_time=?",  # noqa: S608
                (*columns.values(), *self._key(attempt)),
            )

    def tell(
        self, attempt: Attempt, told: str, cause: str, why: str, *, time: float, kind: str, bad: tuple[str, ...] = ()
    ) -> None:
        """Write a judgement to the attempt and to the incidents, as one."""
        with self.transaction():
            self._db.execute(
                "UPDATE attempts SET told=?, cause=?, why=?, bad=? WHERE cluster=? AND job_id=? AND start_time=?",
                (told, cause, why[:500], " ".join(bad), *self._key(attempt)),
            )
            self._note(time, kind, why, bad[0] if bad else "", attempt.job_id)

    def _last(self, job_id: int) -> Optional[sqlite3.Row]:
        row: Optional[sqlite3.Row] = self._db.execute(
            "SELECT * FROM attempts WHERE cluster=? AND job_id=? ORDER BY rowid DESC LIMIT 1",
            (self.cluster, job_id),
        ).fetchone()
        return row

    def last(self, job_id: int) -> Optional[Record]:
        """The newest attempt of a job: the one noted last, since start times go back where the clock is set back."""
        with self.translated():
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
            settled=row["settled"],
        )
        return Record(
            attempt,
            row["state"],
            row["calm_since"],
            row["max_restarts"],
            row["told"],
            tuple(row["bad"].split()),
            row["restart_cnt"],
            row["cause"],
        )

    def open_jobs(self) -> set[int]:
        """Jobs with an attempt that is not over."""
        with self.translated():
            rows = self._db.execute(
                "SELECT DISTINCT job_id FROM attempts WHERE cluster=? AND state IN ('running', 'ended')",
                (self.cluster,),
            ).fetchall()
        return {row[0] for row in rows}

    def forget(self, job_id: int) -> None:
        """Slurm no longer has this job: nothing can be done for it."""
        with self.translated():
            self._db.execute(
                "UPDATE attempts SET state='done' WHERE cluster=? AND job_id=? AND state IN ('running', 'ended')",
                (self.cluster, job_id),
            )

    def set_aside_earlier_job(self, job: Job, time: float) -> bool:
        """Where what is known under this id was another job's (slurmctld -c, a new StateSaveLocation), begin afresh.

        SubmitTime alone proves nothing, since it may be set anew by a requeue; but that raises the restart count. So: an attempt
        that was seen running before this job was submitted, and with no smaller count. True where there was such a job.
        """
        if job.submit_time is None:
            return False
        old = "cluster=? AND job_id=? AND start_time<?"
        key = (self.cluster, job.job_id, job.submit_time)
        with self.transaction():
            found = self._db.execute(
                f"SELECT 1 FROM attempts WHERE {old} AND seen=1 AND restart_cnt>=? LIMIT 1",  # noqa: S608
                (*key, job.restart_cnt),
            ).fetchone()
            if found is None:
                return False
            # kept for `aistation incidents` and keep_days, under a name that no cluster has
            for table in ("attempts", "actions"):
                self._db.execute(
                    f"UPDATE {table} SET cluster=? WHERE {old}",  # noqa: S608
                    (f"{self.cluster}{EARLIER}{time:.3f}", *key),
                )
            self._db.execute("DELETE FROM exclusions WHERE cluster=? AND job_id=?", (self.cluster, job.job_id))
            self._note(
                time, NEW_JOB, "a new job has this id: what was done for the earlier one does not count", "", job.job_id
            )
        return True

    # ---- actions

    def intend(self, attempt: Attempt, kind: str, time: float, detail: str) -> int:
        """Before an action; returns its id. One that is still open for the same attempt is taken up again."""
        with self.transaction():
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
        with self.translated():
            row = self._open(attempt, kind)
        return None if row is None else float(row["intended"])

    def close_open(self, attempt: Attempt, kind: str, time: float, outcome: str) -> None:
        """End an open intent by what Slurm shows."""
        with self.translated():
            self._db.execute(
                "UPDATE actions SET done=?, outcome=? WHERE cluster=? AND job_id=? AND start_time=? AND kind=? "
                "AND done IS NULL",
                (time, outcome, *self._key(attempt), kind),
            )

    def done(self, action: int, attempt: Attempt, time: float, outcome: str, text: str, state: str = "") -> None:
        """After an action: its outcome, the attempt's new state where it has one, and an incident, as one."""
        with self.transaction():
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
        with self.translated():
            row = self._db.execute(
                "SELECT COUNT(*), COALESCE(MAX(done), 0) FROM actions WHERE cluster=? AND job_id=? AND start_time=? "
                "AND kind=? AND outcome LIKE 'refused%'",
                (*self._key(attempt), kind),
            ).fetchone()
        return int(row[0]), float(row[1])

    def requeued(self, attempt: Attempt) -> bool:
        """Whether the watchdog itself put this attempt's job back in the queue."""
        with self.translated():
            row = self._db.execute(
                "SELECT 1 FROM actions WHERE cluster=? AND job_id=? AND start_time=? AND kind='requeue' "
                "AND outcome LIKE 'done%' LIMIT 1",
                self._key(attempt),
            ).fetchone()
        return row is not None

    def past(self, job_id: int) -> list[PastAttempt]:
        """Every attempt of a job, the newest first."""
        with self.translated():
            rows = self._db.execute(
                "SELECT start_time, ended, seen, cause, EXISTS (SELECT 1 FROM actions x WHERE x.cluster=a.cluster "
                "AND x.job_id=a.job_id AND x.start_time=a.start_time AND x.outcome LIKE 'done%' "
                "AND x.kind IN ('start', 'release')) FROM attempts a WHERE cluster=? AND job_id=? ORDER BY rowid DESC",
                (self.cluster, job_id),
            ).fetchall()
        return [PastAttempt(row[0], row[1], bool(row[2]), row[3], bool(row[4])) for row in rows]

    # ---- exclusions

    def exclude(self, job_id: int, nodes: Iterable[str], time: float) -> None:
        """These nodes of the job's ExcNodeList are ours, as of ``time``."""
        with self.transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO exclusions (cluster, job_id, node, since) VALUES (?,?,?,?)",
                [(self.cluster, job_id, node, time) for node in nodes],
            )

    def exclusions(self, job_id: int) -> dict[str, float]:
        """Node -> unix time since which it is excluded by us."""
        with self.translated():
            rows = self._db.execute(
                "SELECT node, since FROM exclusions WHERE cluster=? AND job_id=?", (self.cluster, job_id)
            ).fetchall()
        return {row[0]: row[1] for row in rows}

    def jobs_with_exclusions_before(self, time: float) -> set[int]:
        """Jobs that have an exclusion of ours which is older than ``time``."""
        with self.translated():
            rows = self._db.execute(
                "SELECT DISTINCT job_id FROM exclusions WHERE cluster=? AND since<?", (self.cluster, time)
            ).fetchall()
        return {row[0] for row in rows}

    def drop_exclusions(self, job_id: int, nodes: Iterable[str]) -> None:
        """They are over."""
        with self.transaction():
            self._db.executemany(
                "DELETE FROM exclusions WHERE cluster=? AND job_id=? AND node=?",
                [(self.cluster, job_id, node) for node in nodes],
            )

    # ---- incidents and reading

    def note(self, time: float, kind: str, text: str, *, node: str = "", job_id: int = 0) -> None:
        with self.translated():
            self._note(time, kind, text, node, job_id)

    def _note(self, time: float, kind: str, text: str, node: str, job_id: int) -> None:
        self._db.execute(
            "INSERT INTO incidents (time, kind, node, job_id, text) VALUES (?,?,?,?,?)",
            (time, kind, node, job_id, text[:1000]),
        )

    def note_once(self, time: float, kind: str, text: str, *, job_id: int) -> None:
        """As ``note``, where the job has no such line yet."""
        with self.transaction():
            row = self._db.execute(
                "SELECT 1 FROM incidents WHERE job_id=? AND kind=? AND text=? LIMIT 1", (job_id, kind, text)
            ).fetchone()
            if row is None:
                self._note(time, kind, text, "", job_id)

    def incidents(self, since: float = 0.0, job_id: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest ``limit``, newest last."""
        with self.translated():
            rows = self._db.execute(
                "SELECT * FROM (SELECT * FROM incidents WHERE time>=? AND (?=0 OR job_id=?) ORDER BY id DESC LIMIT ?) "
                "ORDER BY id",
                (since, job_id, job_id, limit),
            ).fetchall()
        return [dict(row) for row in rows]

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        """Oldest first; not those of an earlier job with this id."""
        with self.translated():
            rows = self._db.execute(
                "SELECT * FROM attempts WHERE job_id=? AND instr(cluster, ?)=0 ORDER BY start_time", (job_id, EARLIER)
            ).fetchall()
        return [dict(row) for row in rows]

    def actions(self, job_id: int) -> list[dict[str, Any]]:
        """Oldest first."""
        with self.translated():
            rows = self._db.execute(
                "SELECT * FROM actions WHERE job_id=? AND instr(cluster, ?)=0 ORDER BY id", (job_id, EARLIER)
            ).fetchall()
        return [dict(row) for row in rows]


def _texts(attempt: Attempt) -> tuple[str, str]:
    return " ".join(attempt.nodes), " ".join(attempt.gres)
